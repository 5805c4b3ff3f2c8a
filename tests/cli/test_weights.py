"""`embodied weights` as a user meets it: on disk, through a server, and during a training run."""

import getpass
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.consumed import read_consumed
from embodied.cli import weights
from embodied.client import RemoteClient
from embodied.errors import CorruptFile, InfrastructureError, UserError, WeightsHeld
from embodied.monitor.metrics import read_metrics
from embodied.weights.manifest import Manifest
from embodied.weights.registry import Registry
from tests.cli.command import SMALL, embodied, one_line, start


def publish(registry: Registry, count: int = 1, policy: str = "mlp") -> None:
    for _ in range(count):
        number = registry.reserve(policy)
        registry.publish(policy, number, {"w": np.full(2, number, np.float32)}, {"name": policy})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    registry = Registry(tmp_path / "w")
    publish(registry, 4)
    registry.pair("mlp", {2: 10, 3: 20})
    return registry.folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert weights.main(words) == 0
    return capsys.readouterr().out


def test_pointers_are_shown_and_moved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, label = f"weights={folder}", {v.number: v.label for v in Registry(folder).versions("mlp")}
    listed = said(capsys, "ls", at)
    assert all(text in listed for text in label.values()) and "step 20" in listed and "4 versions" in listed
    rows = [json.loads(line) for line in said(capsys, "ls", at, "--json").splitlines()]
    assert [(row["number"], row["serving"], row["checkpoint"]) for row in rows] == [
        (1, False, None), (2, False, 10), (3, False, 20), (4, True, None)]  # fmt: skip
    assert f"version {label[2]} is active instead of {label[4]}, and pinned" in said(capsys, "pin", "2", at)
    with pytest.raises(UserError, match=r"is pinned.*unpin it first"):
        weights.main(["rollback", at])
    assert f"version {label[4]} is active instead of {label[2]}" in said(capsys, "unpin", at)
    assert "nothing was pinned" in said(capsys, "unpin", at)
    assert "nothing was held" in said(capsys, "resume", at)
    back = said(capsys, "rollback", at, "note=it drops the cube")
    assert f"version {label[3]} is active instead of {label[4]}; learners wait" in back
    assert f"`embodied weights resume {at}` goes on" in back and "restore=true" in back
    status = said(capsys, "status", at)
    assert f"active:  {label[3]} (rolled back; newest is {label[4]})" in status and "pinned:  no" in status
    assert f"newest:  {label[4]}" in status
    assert f"by {getpass.getuser()}@" in status and "it drops the cube" in status
    assert f"rollback  {label[3]}, from {label[4]}" in status and status.count("\n") == 6 + 7
    state = json.loads(said(capsys, "status", at, "--json"))
    assert state["active"] == label[3] and state["held"]["note"] == "it drops the cube"
    assert [line["event"] for line in state["audit"]][-3:] == ["pin", "unpin", "rollback"]
    assert "checkpoint of step 20" in said(capsys, "resume", at, "restore=true")
    assert "learner is to restore" in said(capsys, "status", at)
    on = said(capsys, "resume", at)
    assert "until the next one is published" in on and f"`embodied weights pin N {at}` serves another one" in on
    assert said(capsys, "--help").startswith("embodied weights ls|status|pin")
    damaged = Registry(folder).path("mlp", Registry(folder).find("mlp", 1)) / "manifest.json"
    damaged.write_text("{")
    listed = said(capsys, "ls", at)
    assert "damaged" in listed and str(damaged) in listed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lss"], "did you mean ls"),
        (["pin"], "pin takes a version"),
        (["pin", "99"], "version 99 of mlp is not kept .*versions kept: 1, 2, 3, 4"),
        (["pin", "99-abcdefabcdef"], "versions kept: 1, 2, 3, 4"),
        (["pin", "two"], "no version 'two'"),
        (["rollback", "0"], "versions kept"),
        (["rollback", "1", "2"], "takes no '2'"),
        (["unpin", "3"], "takes no '3'"),
        (["ls", "--all"], "unknown flag '--all'"),
        (["ls", "polcy=mlp"], "did you mean policy"),
        (["ls", "policy=mpl"], "did you mean mlp"),
        (["ls", "note=x"], "it is for rollback"),
        (["pin", "1", "restore=true"], "it is for resume"),
        (["resume", "restore=yes"], "write restore=true"),
        (["resume", "restore=true"], "roll back first"),
        (["ls", "run=x"], "run and weights name two places"),
        (["ls", "credentials=k"], "give address="),
        (["ls", "address=tcp://127.0.0.1:1"], "weights and address name two places"),
    ],
)
def test_a_mistake_gets_one_line(folder: Path, words: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        weights.main([*words, f"weights={folder}"])
    assert "\n" not in caught.value.line() and caught.value.exit_status == 2


def test_what_is_not_there_gets_one_line(folder: Path, tmp_path: Path) -> None:
    publish(Registry(folder), policy="other")
    for words, expected in (
        ([f"weights={tmp_path / 'x'}"], "no such folder"),
        ([f"weights={folder.parent}"], "no weights are here"),
        ([f"weights={folder}"], r"there are 2 policies .*policy=mlp\|other"),
        (["run=nothing", f"runs={tmp_path}"], "no run nothing"),
        (["address=ipc:///nowhere/x"], "mkdir"),
        (["address=tcp://127.0.0.1:1", "timeout_s=soon"], "timeout_s cannot be 'soon'"),
        (["address=tcp://example.org:1"], "credentials"),
    ):
        with pytest.raises(UserError, match=expected):
            weights.main(["status", *words])
    with pytest.raises(UserError, match="a server lists no versions"):
        weights.main(["ls", "address=tcp://127.0.0.1:1"])
    with pytest.raises(UserError, match="a server has no checkpoints"):
        weights.main(["resume", "restore=true", "address=tcp://127.0.0.1:1"])
    said = embodied("weights", "pin", "77", f"weights={folder}", "policy=mlp", folder=tmp_path)
    assert "versions kept: 1, 2, 3, 4" in one_line(said)
    (folder / "active.json").write_text("{")
    said = embodied("weights", "ls", f"weights={folder}", "policy=mlp", folder=tmp_path)
    assert "delete it" in one_line(said, status=3)


# A training run that is rolled back, gone on with, rolled back again and restored.


def wait_for(what: Callable[[], bool], process: "subprocess.Popen[str]", limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def moved(root: Path, *words: str) -> None:
    assert weights.main([*words, "run=live", f"runs={root / 'runs'}"]) == 0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, Registry, "subprocess.Popen[str]"]]:
    """A run that trains on until it is ended."""
    words = [*SMALL, "checkpoint.every=2", "evaluate.target=1.01", "budget.env_steps=100000000", "name=live"]
    process = start("train", *words, folder=tmp_path)
    run = tmp_path / "runs" / "live"
    try:
        wait_for(lambda: len(list(run.glob("checkpoints/0*"))) >= 3, process)
        yield run, Registry(run / "weights"), process
    finally:
        process.kill()
        process.communicate(timeout=30)


def newest(registry: Registry) -> int:
    return registry.versions("mlp")[-1].number


def active(registry: Registry) -> int:
    version = registry.active("mlp")
    assert version is not None
    return version.number


def test_a_live_run_is_rolled_back_resumed_and_restored(
    live: tuple[Path, Registry, "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    run, registry, process = live

    def waits_at(number: int) -> bool:
        switches = [line for line in registry.audit() if line["event"] == "switch"]
        return bool(switches) and switches[-1]["version"].startswith(f"{number}-")

    moved(tmp_path, "rollback", "note=it drops the cube")
    first = active(registry)
    wait_for(lambda: waits_at(first), process)
    stopped = newest(registry)
    time.sleep(1.2)
    assert newest(registry) == stopped and registry.held("mlp") is not None
    moved(tmp_path, "resume")
    wait_for(lambda: newest(registry) > stopped + 4, process)
    assert registry.held("mlp") is None and registry.pointers("mlp").serving is None

    moved(tmp_path, "rollback")
    second = active(registry)
    wait_for(lambda: waits_at(second), process)
    stopped, step = newest(registry), registry.restorable("mlp")[0][1]
    weights_then = registry.read("mlp", second)[1]
    updates = len(read_consumed(run / "episodes"))
    moved(tmp_path, "resume", "restore=true")
    wait_for(lambda: newest(registry) > stopped, process)
    restored = registry.find("mlp", min(v.number for v in registry.versions("mlp") if v.number > stopped))
    content = registry.read("mlp", restored.label)[1]
    assert all((content[name] == weights_then[name]).all() for name in content), "the checkpoint of what was served"
    wait_for(lambda: newest(registry) > restored.number + 2, process)

    consumed = [line for line in read_consumed(run / "episodes")[updates:] if line.version > restored.number]
    assert consumed[0].update == step + 1, "training went back to the step of the checkpoint"
    assert {segment.split("/")[1] for line in consumed for segment in line.segments} == {"1"}, "nothing older trains"
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=30)[0]
    assert out.count("training waits: version") == 2 and f"going back runs/live to step {step}" in out
    steps = read_metrics(run / "metrics.csv")["step"]
    assert steps == [float(i) for i in range(len(steps))]
    check_audit(registry)


def check_audit(registry: Registry) -> None:
    """Every version, move and switch of the run is there, in order, and no number twice."""
    lines = registry.audit()
    published = [line["version"] for line in lines if line["event"] == "publish"]
    numbers = [int(label.split("-")[0]) for label in published]
    assert numbers == sorted(set(numbers))
    assert {version.label for version in registry.versions("mlp")} <= set(published)
    moves = [line["event"] for line in lines if line["event"] not in ("publish", "prune")]
    assert moves == ["rollback", "switch", "resume", "rollback", "switch", "resume"]
    held = False
    for line in lines:
        assert not (line["event"] == "publish" and held), "published while it was held"
        if line["event"] in ("rollback", "resume"):
            held = line["event"] == "rollback"
            assert {"time", "policy", "version", "from", "by", "note", "pid"} <= line.keys()


@pytest.mark.slow
def test_a_held_run_that_is_killed_can_be_restored_as_it_is_resumed(
    live: tuple[Path, Registry, "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    run, registry, process = live
    moved(tmp_path, "rollback")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    refused = embodied("train", "resume=live", "runtime.hold_s=0.6", "budget.env_steps=1", folder=tmp_path)
    line = one_line(refused, status=3)
    assert "held publication for 0.6 s" in line and f"`embodied weights resume run={run}`" in line
    step = registry.restorable("mlp")[0][1]
    moved(tmp_path, "resume", "restore=true")
    done = embodied("train", "resume=live", "budget.env_steps=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"going back {run} to step {step}" in done.stderr
    assert registry.held("mlp") is None and registry.active("mlp") == registry.versions("mlp")[-1]
    assert max(int(path.name) for path in run.glob("checkpoints/0*")) == step


class Far:
    """A server that keeps versions of its own, and its client."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/policy"
        words = ["run=null", "task=reach", "env.num_threads=1", f"weights={folder / 'kept'}"]
        self.process = start("serve", *words, f"address={self.address}", folder=folder)
        self.registry, self.client = Registry(folder / "kept"), RemoteClient(self.address, timeout_s=60)
        self.spec = self.client.hello()

    def move(self, *words: str) -> None:
        assert weights.main([*words, f"address={self.address}"]) == 0

    def serves(self, number: int) -> None:
        wait_for(lambda: self.client.version()[0] == number, self.process)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    made = Far(tmp_path)
    yield made
    made.client.close()
    made.process.send_signal(signal.SIGTERM)
    made.process.communicate(timeout=30)


def test_a_server_is_moved_from_afar(far: Far, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, policy = Registry(tmp_path / "source"), far.spec.name
    with pytest.raises(UserError, match="no weights of policy"):
        far.move("rollback")
    layout = np.load(make_layout(tmp_path))
    for number in (1, 2, 3, 4):
        tensors = {name: np.full(layout[name].shape, number / 10, layout[name].dtype) for name in layout}
        tensors["action_scale"] = layout["action_scale"]
        manifest = source.publish(policy, source.reserve(policy), tensors, far.spec.to_dict())
        assert far.client.push(manifest, tensors) == manifest.version
    labels = {version.number: version.label for version in far.registry.versions(policy)}
    capsys.readouterr()
    far.move("pin", "2")
    assert far.client.version()[0] == 2, "it is served as the command returns"
    assert f"version {labels[2]} is served instead of {labels[4]}, and pinned" in capsys.readouterr().out
    far.move("unpin")
    assert far.client.version()[0] == 4
    unfit = Manifest.of(policy, 1, {"w": np.zeros(2, np.float32)}, far.spec.to_dict())
    kept = far.registry.path(policy, far.registry.find(policy, 1))
    (kept / "model.safetensors").rename(tmp_path / "aside")
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        far.move("pin", "1")
    (tmp_path / "aside").rename(kept / "model.safetensors")
    shutil.move(kept, tmp_path / "first")
    (far.registry.folder / "audit.jsonl").rename(tmp_path / "audit")
    far.registry.adopt(unfit, {"w": np.zeros(2, np.float32)})
    (tmp_path / "audit").rename(far.registry.folder / "audit.jsonl")
    with pytest.raises(InfrastructureError, match=rf"pointers moved, but the server still serves {labels[4]}: .*w"):
        far.move("pin", "1")
    far.move("unpin")
    shutil.rmtree(far.registry.path(policy, unfit.version))
    shutil.move(tmp_path / "first", kept)
    far.move("rollback", "note=why")
    held = far.registry.held(policy)
    assert held is not None and held.note == "why" and getpass.getuser() in held.by
    far.serves(3)
    manifest = source.publish(policy, source.reserve(policy), tensors, far.spec.to_dict())
    with pytest.raises(WeightsHeld, match="why"):
        far.client.push(manifest, tensors)
    capsys.readouterr()
    far.move("status")
    shown = capsys.readouterr().out
    assert "served:  3-" in shown and "active:  3-" in shown and "why; `embodied weights resume address=" in shown
    with pytest.raises(UserError, match="versions kept: 1, 2, 3, 4"):
        far.move("pin", "99")
    far.move("resume")
    assert far.registry.held(policy) is None
    assert far.client.push(manifest, tensors) == manifest.version
    whys = ["push", "push", "push", "push", "pin", "follow", "rollback", "push"]
    wait_for(lambda: [e["why"] for e in far.registry.audit() if e["event"] == "switch"] == whys, far.process)


def make_layout(folder: Path) -> Path:
    """A file with the arrays of the policy of `task=reach`, made in a process of its own: torch is slow to import."""
    code = f"""if 1:
        import numpy as np
        from embodied.cli.compose import compose_config
        from embodied.runs.parts import make_env, make_policy
        from omegaconf import OmegaConf
        c = OmegaConf.to_container(compose_config("train", ["task=reach"]), resolve=True)
        env = make_env(c["task"], c["env"], 1, 0)
        np.savez({str(folder / "layout.npz")!r}, **make_policy(c["policy"], env.spec, 0).tensors())
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    return folder / "layout.npz"


@pytest.mark.slow
def test_a_learner_is_held_by_the_server_it_pushes_to(far: Far, tmp_path: Path) -> None:
    """Rolled back at the server: resumed there, then at the run; then restored at the run, and the server lets go."""
    words = [*SMALL, "checkpoint.every=2", "evaluate.target=1.01", "budget.env_steps=100000000", "name=live"]
    words += ["client=remote", f"client.address={far.address}", "client.timeout_s=60"]
    process = start("train", *words, folder=tmp_path)
    run = tmp_path / "runs" / "live"
    registry = Registry(run / "weights")
    try:
        wait_for(lambda: len(list(run.glob("checkpoints/0*"))) >= 4, process)
        for resume in (lambda: far.move("resume"), lambda: moved(tmp_path, "resume"),
                       lambda: moved(tmp_path, "resume", "restore=true")):  # fmt: skip
            far.move("rollback")
            back = active(far.registry)
            wait_for(lambda: registry.held("mlp") is not None, process)
            far.serves(back)
            stopped = far.registry.versions("mlp")[-1].number
            time.sleep(1.1)
            assert far.registry.versions("mlp")[-1].number == stopped and far.client.version()[0] == back
            resume()
            wait_for(lambda: far.client.version()[0] > stopped + 2, process)  # noqa: B023
            assert far.registry.held("mlp") is None
            wait_for(lambda: registry.held("mlp") is None, process)
        moved(tmp_path, "rollback")  # of the run itself: its server serves that too, and is not held
        far.serves(active(registry))
        assert far.registry.held("mlp") is None
        stopped = newest(registry)
        moved(tmp_path, "resume")
        wait_for(lambda: far.client.version()[0] > stopped, process)
    finally:
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=30)[0]
    assert out.count("training waits") == 4 and out.count("going back") == 1, out
