"""Run folders: named once, found by name or path, written by one process, attempts never counted twice."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embodied.errors import ConfigError, InfrastructureError, UserError
from embodied.files import TEMPORARY
from embodied.runs.run_folder import check_free, create, lock, next_attempt, point_latest, resolve, runs

FAULTS = Path(__file__).parents[1] / "faults.py"


def test_create_and_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    first = create(root, "a")
    point_latest(root, first)
    assert first == root / "a" and resolve("latest", root) == first.resolve()
    second = create(root, None, "reach-ppo")
    point_latest(root, second)
    assert second.name.startswith("reach-ppo-20") and resolve("latest", root) == second.resolve()
    third = create(root, None, "reach-ppo")
    assert third != second and runs(root) == sorted(["a", second.name, third.name])
    monkeypatch.chdir(tmp_path)
    for name in ("a", "runs/a", str(first), first):
        assert resolve(name, root) == first.resolve()
    point_latest(root, first)
    assert resolve("latest", Path("runs")) == first.resolve()
    moved = root.rename(tmp_path / "elsewhere")
    assert resolve("latest", moved) == (moved / "a").resolve()


def test_an_existing_run_is_refused_in_one_line(tmp_path: Path) -> None:
    create(tmp_path, "a")
    (tmp_path / "empty").mkdir()
    for name in ("a", "empty"):
        with pytest.raises(UserError, match=rf"the run {name} exists .*choose another name=\.\.\. or resume={name}"):
            create(tmp_path, name)
    for name in ("", "latest", "../a", "a/b", ".a", "a b"):
        with pytest.raises(ConfigError, match="cannot be named"):
            create(tmp_path, name)


def test_one_of_many_gets_a_name(tmp_path: Path) -> None:
    def attempt(_: int) -> str:
        try:
            return create(tmp_path, "a").name
        except UserError:
            return ""

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(attempt, range(8))) == [""] * 7 + ["a"]


def test_an_unknown_run_is_one_line_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no latest run.*embodied train"):
        resolve("latest", tmp_path / "runs")
    create(tmp_path, "lift_cube-1")
    with pytest.raises(UserError, match=r"no run lift_cub-1 .*did you mean lift_cube-1"):
        resolve("lift_cub-1", tmp_path)
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="not of a run"):
        resolve("notes", tmp_path)
    with pytest.raises(UserError):
        resolve("", tmp_path)
    (tmp_path / "latest").symlink_to("gone")
    with pytest.raises(UserError, match=r"no latest run.*run=lift_cube-1"):
        resolve("latest", tmp_path)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(UserError, match="no link"):
        point_latest(tmp_path, create(tmp_path, "b"))


def test_one_process_writes_a_run_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    code = f"""if 1:
        import sys
        from pathlib import Path
        from embodied.runs.run_folder import lock
        with lock(Path({str(run)!r})):
            print("held", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"the run a is being written by pid {holder.pid} "):
            lock(run)
        holder.kill()
    assert (run / ".lock").read_text() == str(holder.pid)
    with lock(run), pytest.raises(UserError, match="this process"):
        lock(run)
    lock(run).release()


def test_attempts_count_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = create(tmp_path, "a")
    assert [next_attempt(run) for _ in range(3)] == [0, 1, 2]
    file = run / "attempt.json"
    file.write_text(file.read_text().replace("3", "1"))
    (run / "episodes").mkdir()
    (run / "episodes" / "shard-6-000000.h5").touch()
    assert [next_attempt(run) for _ in range(2)] == [7, 8]
    assert caplog.text.count("attempt 7 begins, after the last that left a file") == 1
    file.write_text("{")
    (run / "provenance.jsonl").write_text("{}\n" * 9)
    assert next_attempt(run) == 9


def test_too_little_disk_is_one_line(tmp_path: Path) -> None:
    check_free(tmp_path / "not" / "yet")
    with pytest.raises(InfrastructureError, match=r"no disk space: .* MB free, 1000000000000 MB needed"):
        check_free(tmp_path / "not" / "yet", 10**18)


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    try:
        run = resolve("a", folder / "runs")
    except UserError:
        run = create(folder / "runs", "a")
    with lock(run):
        attempt = next_attempt(run)
        with (folder / "attempts").open("a") as file:
            file.write(f"{attempt}\n")
        point_latest(folder / "runs", run)


def check(folder: Path, outcome: str) -> None:
    attempts = [int(line) for line in (folder / "attempts").read_text().split()] if attempts_file(folder) else []
    assert attempts == sorted(set(attempts)), "an attempt was counted twice"
    if runs(folder / "runs"):
        with lock(resolve("a", folder / "runs")) as held:
            assert next_attempt(held.path.parent) > max(attempts, default=-1)
    if outcome not in ("done", "killed"):
        assert outcome.startswith("InfrastructureError: no disk space"), outcome
        assert not list(folder.rglob(f"{TEMPORARY}*"))


def attempts_file(folder: Path) -> bool:
    return (folder / "attempts").exists()


@pytest.mark.parametrize("mode", ["calls", "random 20", "limited 0 50"])
def test_killed_or_without_disk(tmp_path: Path, mode: str) -> None:
    mode, *counts = mode.split()
    command = [sys.executable, str(FAULTS), mode, __file__, "work", "check", str(tmp_path), *counts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 10 or mode == "limited"


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    for given in ("weights.pt", str(tmp_path / "weights.pt")):
        with pytest.raises(UserError, match=r"weights\.pt is a file, not a run .*give a run's name, or its folder"):
            resolve(given, tmp_path)
