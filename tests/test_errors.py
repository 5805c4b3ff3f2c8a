import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied import errors
from embodied.errors import ConfigError, DataError, EmbodiedError, InfrastructureError, UserError, nearest

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, EmbodiedError)]


def test_one_line_says_what_where_and_what_to_do() -> None:
    error = ConfigError("unknown task 'lift'", "task=lift", "did you mean lift_cube?")
    assert str(error) == error.line() == "unknown task 'lift' (task=lift): did you mean lift_cube?"
    assert str(ConfigError("unknown task")) == "unknown task"
    assert (
        str(ConfigError("unknown task", fix="run embodied train --help")) == "unknown task: run embodied train --help"
    )


@given(st.text(), st.text(), st.text())
def test_a_line_is_one_line(what: str, where: str, fix: str) -> None:
    assert len(EmbodiedError(what, where, fix).line().splitlines()) <= 1


def test_to_dict_holds_the_fields_of_the_wire() -> None:
    assert errors.Busy("queue full", "policy server", "ask again").to_dict() == {
        "code": "busy",
        "what": "queue full",
        "where": "policy server",
        "fix": "ask again",
    }


def test_codes_are_unique() -> None:
    codes = [c.code for c in CLASSES]
    assert len(set(codes)) == len(codes) > 8


@pytest.mark.parametrize("cls", CLASSES)
def test_exit_status_follows_who_has_to_act(cls: type[EmbodiedError]) -> None:
    assert cls.exit_status == (2 if issubclass(cls, UserError) else 3)
    if cls is not EmbodiedError:
        assert sum(issubclass(cls, kind) for kind in (UserError, InfrastructureError, DataError)) == 1


def test_nearest_names() -> None:
    tasks = ["reach", "lift_cube", "stack"]
    assert nearest("lift", tasks) == "did you mean lift_cube?"
    assert nearest("unseen", ["seen", "unseen_instructions"]) == "did you mean unseen_instructions or seen?"
    assert nearest("REACH", tasks) == "did you mean reach?"
    assert nearest("sac", ["bc", "ppo"]) == "known: bc, ppo"
    assert nearest("x", [f"name-{n:05}" for n in range(50)]) == (
        "known: " + ", ".join(f"name-{n:05}" for n in range(33)) + " and 17 more"
    )
    assert nearest("reech", tasks) == "did you mean reach?"
    assert nearest("zzzzzz", tasks) == "known: lift_cube, reach, stack"
    assert nearest("anything", []) == "nothing is known under any name"
    assert nearest("stock", ["rack", "stacks", "reach", "stack"], count=2) == "did you mean stack or stacks?"
