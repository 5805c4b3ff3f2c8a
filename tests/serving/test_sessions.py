from embodied.serving.rate_limits import Rates
from embodied.serving.sessions import Sessions


def sessions(most: int = 3) -> Sessions:
    return Sessions(most, 1.0, 5.0, Rates(0, 0), 0.0)


def test_the_longest_unheard_makes_room() -> None:
    table = sessions()
    first = table.hear(b"1", "", "a", 0.0)
    for at, name in enumerate("bc", 1):
        table.hear(name.encode(), "", name, at)
    assert table.hear(b"1", "", "a", 3.0) is first
    table.hear(b"d", "", "d", 4.0)
    assert [session.key[1] for session in table] == ["c", "a", "d"]


def test_a_session_moves_to_its_new_connection_and_expires_after_silence() -> None:
    table = sessions()
    one = table.hear(b"1", "anna", "a", 0.0)
    assert table.hear(b"2", "anna", "a", 4.0) is one and one.peer == b"2"
    assert table.hear(b"3", "bert", "a", 4.0) is not one
    assert table.tick(8.9) and one in table
    table.tick(9.3)
    assert one not in table and len(table) == 0


def test_heartbeats_are_due_after_silence() -> None:
    table = sessions()
    one = table.hear(b"1", "", "a", 0.0)
    assert table.tick(0.5) == [] and table.tick(1.0) == [one] and table.tick(1.5) == [] and table.tick(2.0) == [one]


def test_a_forgotten_session_is_a_stranger_to_its_namesake() -> None:
    table = sessions()
    old = table.hear(b"1", "", "a", 0.0)
    table.forget(old)
    new = table.hear(b"1", "", "a", 0.0)
    table.forget(old)
    assert new in table and old not in table
