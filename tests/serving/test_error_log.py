import logging

import pytest

from embodied.serving.error_log import ErrorLog


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_one_client_cannot_fill_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    errors = ErrorLog(logging.getLogger("errors"), lambda: now)
    for _ in range(5000):
        errors.record("policy tiny failed", raised(ValueError("first\nthe last line")))
    assert [record.exc_info is not None for record in caplog.records] == [True] + [False] * 7
    assert caplog.messages[1] == "policy tiny failed: ValueError: the last line (10 times within a minute)"
    for number in range(5000):  # other words each time
        errors.record("policy tiny failed", raised(KeyError(str(number))))
    assert sum(record.exc_info is not None for record in caplog.records) == 8 and len(caplog.records) < 30
    caplog.clear()
    now = 60.0
    errors.record("policy tiny failed", raised(ValueError("the last line")))
    assert caplog.messages[0] == "policy tiny failed: ValueError: the last line (5000 times within a minute)"
    assert caplog.records[-1].exc_info and caplog.messages[-1] == "policy tiny failed"
