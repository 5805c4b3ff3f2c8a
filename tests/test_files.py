"""Files: whole or absent, bounded, and locked by one at a time."""

import errno
import os
from pathlib import Path

import pytest

from embodied.errors import CorruptFile, InfrastructureError
from embodied.files import (
    TEMPORARY,
    Lock,
    append_line,
    atomic_dir,
    clean_temporaries,
    disk_errors,
    open_file,
    read_bytes,
    read_json,
    read_sealed,
    sealed,
    warn_of_mode,
    write_bytes,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"one", memoryview(b" two"))
    write_json(tmp_path / "b", {"x": [1, 2]})
    assert (tmp_path / "a").read_bytes() == b"one two" and read_json(tmp_path / "b", "fix") == {"x": [1, 2]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "b", {"x": object()})
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "a", b"half", 3)  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == b"one two" and names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path: Path, code: int, monkeypatch) -> None:
    write_bytes(tmp_path / "a", b"old")

    def full(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfrastructureError, match="no disk space"):
        write_bytes(tmp_path / "a", b"new")
    with pytest.raises(InfrastructureError, match="no disk space"), atomic_dir(tmp_path / "d") as part:
        (part / "x").write_bytes(b"x")
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_other_errors_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="may not write"), disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "denied")
    with pytest.raises(FileNotFoundError):
        write_bytes(tmp_path / "missing" / "a", b"x")


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "d") as part:
        (part / "sub").mkdir()
        (part / "sub" / "x").write_bytes(b"x")
        assert names(tmp_path) == [part.name] and part.name.startswith(TEMPORARY)
    assert names(tmp_path) == ["d"]
    with pytest.raises(ZeroDivisionError), atomic_dir(tmp_path / "e"):
        1 / 0  # noqa: B018
    with pytest.raises(FileExistsError), atomic_dir(tmp_path / "d"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), atomic_dir(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["d", "file"]
    (tmp_path / f"{TEMPORARY}x").mkdir()
    (tmp_path / f"{TEMPORARY}y").touch()
    assert len(clean_temporaries(tmp_path)) == 2 and names(tmp_path) == ["d", "file"]
    assert clean_temporaries(tmp_path / "missing") == []


def test_reads_are_bounded_and_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for data in (b"", b"[1]", b"{", b"\xff", b"[" * 100_000):
        file.write_bytes(data)
        with pytest.raises(CorruptFile) as caught:
            read_json(file, "mend it")
        assert caught.value.where == str(file) and caught.value.fix == "mend it"
    file.write_bytes(b"x" * 11)
    assert read_bytes(file, 11, "") == b"x" * 11
    for path in (file, tmp_path, tmp_path / "missing"):
        with pytest.raises(CorruptFile):
            read_bytes(path, 10, "")


def test_a_seal_finds_every_change(tmp_path: Path) -> None:
    file, value = tmp_path / "a.json", {"b": {"10": 1.5, "9": None}, "a": float("inf")}
    whole = sealed({"b": {10: 1.5, 9: None}, "a": float("inf")})
    file.write_bytes(whole)
    assert read_sealed(file, "") == value
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptFile):
            read_sealed(file, "")


def test_lines_are_appended_after_a_torn_one(tmp_path: Path) -> None:
    file = tmp_path / "log"
    append_line(file, "one")
    with file.open("a") as torn:
        torn.write("tw")
    append_line(file, "three")
    assert file.read_text() == "one\ntw\nthree\n"


def test_a_fork_does_not_inherit_a_lock(tmp_path: Path) -> None:
    with Lock(tmp_path / ".lock").acquire(1, "test") as lock:
        assert "this process" in lock.holder()
        child = os.fork()
        if child == 0:
            other = Lock(tmp_path / ".lock")
            lock.release()  # the child's copy; the parent keeps holding
            good = not other.try_acquire() and other.holder() == f"pid {os.getppid()}"
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Lock(tmp_path / ".lock").try_acquire()


def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "active.json")
    with pytest.raises(CorruptFile, match="no regular file"):
        read_sealed(tmp_path / "active.json", "delete it")
    with pytest.raises(OSError, match="no regular file"):
        open_file(tmp_path / "active.json")


def test_locks_and_logs_follow_no_link(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / ".lock"
    precious.write_text("data")
    link.symlink_to(precious)
    for write in (lambda: Lock(link).try_acquire(), lambda: append_line(link, "x")):
        with pytest.raises(InfrastructureError, match="cannot be written"):
            write()
    write_bytes(link, b"new")
    assert precious.read_text() == "data" and not link.is_symlink()


def test_modes_that_let_others_in_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret, listed = tmp_path / "a.key_secret", tmp_path / "allowed"
    secret.touch(0o600)
    listed.mkdir(0o755)
    warn_of_mode(secret, secret=True)
    warn_of_mode(listed, secret=False)
    assert not caplog.records
    secret.chmod(0o640)
    listed.chmod(0o775)
    for _ in range(2):
        warn_of_mode(secret, secret=True)
        warn_of_mode(listed, secret=False)
    assert [record.message for record in caplog.records] == [
        f"others can read the secret file {secret}: chmod 600 {secret}",
        f"others can change {listed}: chmod go-w {listed}",
    ]
