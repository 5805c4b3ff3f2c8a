"""Pointers under fire: processes that race, kills at every file call and at random, full disks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied.errors import EmbodiedError
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry
from tests.weights.published import FAULTS, active, made_elsewhere, publish


def test_processes_that_race_leave_whole_pointers_and_a_line_for_every_move(tmp_path: Path) -> None:
    publish(Registry(tmp_path, keep=50), 5)
    code = f"""if 1:
        import random, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from embodied.errors import UserError, WeightsHeld, WeightsRefused
        from embodied.weights.registry import Registry
        from tests.weights.test_pointer_faults import publish
        registry, draw = Registry(sys.argv[1], keep=50), random.Random(int(sys.argv[2]))
        for _ in range(60):
            act = draw.choice(["pin", "unpin", "rollback", "resume", "publish"])
            try:
                if act == "publish":
                    publish(registry)
                elif act == "pin":
                    registry.pin("mlp", draw.randint(1, 5), by=sys.argv[2])
                else:
                    getattr(registry, act)("mlp", by=sys.argv[2])
            except (UserError, WeightsHeld, WeightsRefused):
                continue
    """
    racing = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(seed)], stderr=subprocess.PIPE)
        for seed in range(3)
    ]
    assert [process.communicate(timeout=90)[1] for process in racing] == [b"", b"", b""]
    registry = Registry(tmp_path, keep=50)
    assert replayed(registry) == (registry.pointers("mlp").pinned, registry.pointers("mlp").serving,
                                  registry.held("mlp") is not None)  # fmt: skip


def replayed(registry: Registry) -> tuple[Version | None, Version | None, bool]:
    """Pinned, serving, and whether it is held, from the audit alone; every move says where it came from."""
    pinned = serving = newest = None
    held = False
    for line in registry.audit():
        version = Version.parse(line["version"]) if line["version"] else None
        if "from" in line:
            assert line["from"] == (pinned or serving or newest).label, line
        match line["event"]:
            case "publish":
                newest, serving = version, None
                assert not held
            case "pin":
                pinned = version
            case "unpin":
                pinned = None
            case "rollback":
                serving, held = version, True
            case "resume":
                held = False
    return pinned, serving, held


def test_a_learner_killed_at_random_never_uses_a_number_twice(tmp_path: Path) -> None:
    code = f"""if 1:
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        import os, numpy as np
        from pathlib import Path
        from embodied.weights.registry import Registry
        registry = Registry(sys.argv[1], keep=2)
        while True:
            first = registry.reserve("mlp", 4)
            for number in range(first, first + 4):
                manifest = registry.publish("mlp", number, {{"w": np.frombuffer(os.urandom(512), np.uint8)}}, {{}})
                print(manifest.label, flush=True)
    """
    draw, labels = random.Random(1), []
    for _ in range(6):
        learner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert learner.stdout is not None
        labels += [learner.stdout.readline()]
        time.sleep(draw.uniform(0, 0.1))
        os.kill(learner.pid, signal.SIGKILL)
        labels += learner.communicate(timeout=30)[0].splitlines()
    named = [label.decode().strip() for label in labels] + [line["version"] for line in Registry(tmp_path).audit()]
    contents: dict[str, set[str]] = {}
    for label in filter(None, named):
        contents.setdefault(label.partition("-")[0], set()).add(label)
    assert len(contents) >= 6 and all(len(found) == 1 for found in contents.values())


# Work and checks for tests/faults.py, which runs them in processes that die.


def state(registry: Registry) -> str:
    return f"{active(registry)} {registry.held('mlp') is not None}"


def work(folder: Path) -> None:
    registry = Registry(folder / "weights", keep=3)

    def step(move: Callable[[], object], then: str) -> None:
        # In a name, since a file may not be written into where the disk is full.
        (folder / f"said {len(list(folder.glob('said *'))):04d} {then}").touch()
        move()

    step(lambda: None, state(registry))
    first = registry.reserve("mlp")
    if registry.versions("mlp"):
        step(lambda: registry.resume("mlp"), f"{active(registry)} False")
        serving = registry.pointers("mlp").serving
        step(lambda: registry.unpin("mlp"), f"{(serving or registry.find('mlp', 'latest')).number} False")
    for number in (first, first + 1):
        step(lambda: registry.adopt(*made_elsewhere(number, number)), f"{number} False")  # noqa: B023
    step(lambda: registry.pin("mlp", first), f"{first} False")
    step(lambda: registry.unpin("mlp"), f"{first + 1} False")
    step(lambda: registry.pair("mlp", {first: 10}), f"{first + 1} False")
    step(lambda: registry.rollback("mlp", by="anna"), f"{first} True")
    step(lambda: registry.resume("mlp"), f"{first} False")
    step(lambda: registry.rollback("mlp", first + 1), f"{first + 1} True")


def check(folder: Path, outcome: str) -> None:
    registry = Registry(folder / "weights", keep=3)
    said = [path.name[10:] for path in sorted(folder.glob("said *"))] or ["0 False"]
    for label in (entry.version.label for entry in registry.ls()):
        assert registry.read("mlp", label)[0].label == label
    assert state(registry) in said[-1 if outcome == "done" else -2 :]
    served = registry.active("mlp")
    assert served is None or registry.has("mlp", served), "what is served is gone"
    lines = {(line["event"], line["version"]) for line in registry.audit()}
    pointers = registry.pointers("mlp")
    for at, event in ((pointers.pinned, "pin"), (pointers.serving, "rollback")):
        assert at is None or (event, at.label) in lines, "a pointer moved without a line in the audit"
    for version in registry.versions("mlp"):
        assert ("adopt", version.label) in lines
    if outcome not in ("done", "killed"):
        assert outcome.startswith("InfrastructureError: no disk space"), outcome
    else:
        assert registry.reserve("mlp") > max((v.number for v in registry.versions("mlp")), default=0)


def faults(mode: str, tmp_path: Path, *more: str) -> int:
    command = [sys.executable, str(FAULTS), mode, __file__, "work", "check", str(tmp_path), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_move(tmp_path: Path) -> None:
    assert faults("calls", tmp_path) > 60


def test_killed_at_random_moments_of_moves(tmp_path: Path) -> None:
    assert faults("random", tmp_path, "12") == 12


def test_a_full_disk_leaves_the_pointers_as_they_were(tmp_path: Path) -> None:
    faults("limited", tmp_path, "0", "100", "300", "500", "700", "900", "1200", "1500", "2000")


def test_a_move_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 3)
    registry.pin("mlp", 2)
    before = (tmp_path / "active.json").read_bytes(), registry.audit()
    (tmp_path / "audit.jsonl").rename(tmp_path / "aside")
    (tmp_path / "audit.jsonl").mkdir()
    for move in (registry.unpin, lambda policy: registry.pin(policy, 1)):
        with pytest.raises((EmbodiedError, OSError)):
            move("mlp")
    assert (tmp_path / "active.json").read_bytes() == before[0]
    assert json.loads((tmp_path / "active.json").read_bytes())["policies"]["mlp"]["pinned"].startswith("2-")
