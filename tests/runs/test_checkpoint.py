"""Checkpoints: whole or absent, whatever is killed or altered, and read without running code."""

import copy
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied.errors import CorruptFile, MessageError, SpecMismatch, UserError
from embodied.files import TEMPORARY, sealed
from embodied.runs.checkpoint import FORMAT, SavedPolicy, _checksum, checkpoints, latest, load, read_policy, save
from embodied.spec import AgentSpec, PolicySpec, Stream
from embodied.weights.examine import fingerprints
from policies.mlp import MLPPolicy

FAULTS = Path(__file__).parents[1] / "faults.py"
AGENT = AgentSpec((Stream("joint_pos", (7,), unit="rad"), Stream("cube_pos", (3,))), (Stream("joint_delta", (7,)),))
SPEC = PolicySpec("mlp", AGENT, chunk=4, execute=2, extra={"hidden": [64, 64]}).to_dict()
SPECS = {"mlp": SPEC}
FILES = ("mlp/model.safetensors", "mlp/policy.json", "learner.pt")
TENSORS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(3, np.int64)}
POLICIES = {"mlp": SavedPolicy(TENSORS, SPEC)}
LEARNER = {"count": 1}


def write(folder: Path, step: int, **more: Any) -> Path:
    return save(folder, step, POLICIES, more.pop("learner", LEARNER), more.pop("state", {"step": step}), **more)


def test_bfloat16_and_uint64_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    policy, other = (MLPPolicy("half", AGENT, hidden=(4,)) for _ in range(2))
    for each, value in ((policy, 0.1), (other, 0.0)):
        each.network.register_buffer("halves", torch.full((5,), value, dtype=torch.bfloat16))
        each.network.register_buffer("counts", torch.tensor([2**64 - 1 if value else 0], dtype=torch.uint64))
    spec = policy.spec.to_dict()
    path = save(tmp_path / "checkpoints", 1, {"half": SavedPolicy(policy.tensors(), spec)}, LEARNER, {"step": 1})
    other.load(load(path, {"half": spec}).policies["half"].tensors)
    assert fingerprints(other.tensors()) == fingerprints(policy.tensors())


def test_everything_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser)
    model(torch.ones(4)).sum().backward()
    optimiser.step()
    schedule.step()
    philox = np.random.default_rng(3)
    learner = {
        "optimiser": optimiser.state_dict(),
        "schedule": schedule.state_dict(),
        "rng": {"torch": torch.get_rng_state(), "numpy": philox.bit_generator.state, "python": random.getstate()},
        "mersenne": np.random.RandomState(0).get_state(),
        "mean": np.arange(3.0),
        "flags": np.array([True, False]),
        "count": np.int64(5),
        "none": None,
        5: [b"bytes", (1, 2.5, "text")],
    }
    state = {"versions": [1, 2], "loss": 0.1, "best": float("-inf")}
    path = save(tmp_path / "checkpoints", 12, POLICIES, learner, state)
    assert path.name == "00000012"
    assert {str(file.relative_to(path)) for file in path.rglob("*.*")} == {*FILES, "state.json"}
    loaded = load(path, SPECS)
    saved = loaded.policies["mlp"]
    assert (loaded.path, loaded.step, saved.spec, loaded.state) == (path, 12, SPEC, state)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(saved.tensors[name], array)
        assert saved.tensors[name].dtype == array.dtype
    assert loaded.learner["mean"].dtype == torch.float64 and loaded.learner["mean"].tolist() == [0, 1, 2]
    assert loaded.learner["flags"].tolist() == [True, False] and loaded.learner["count"] == 5
    assert loaded.learner[5] == [b"bytes", (1, 2.5, "text")]
    assert loaded.learner["rng"]["python"] == random.getstate()
    assert torch.equal(loaded.learner["rng"]["torch"], torch.get_rng_state())
    expected = philox.random(4)
    again = np.random.default_rng()
    again.bit_generator.state = loaded.learner["rng"]["numpy"]
    np.testing.assert_array_equal(again.random(4), expected)
    optimiser.load_state_dict(loaded.learner["optimiser"])
    schedule.load_state_dict(loaded.learner["schedule"])


def test_what_weights_only_cannot_read_is_refused_on_saving(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"learner_state\['a'\]\[1\] is a PosixPath"):
        write(tmp_path, 1, learner={"a": [1, Path("x")]})
    assert checkpoints(tmp_path) == []


def test_the_newest_are_kept_and_a_left_continuation_is_removed(tmp_path: Path) -> None:
    for step in (1, 2, 5, 9):
        write(tmp_path, step, keep=3)
    assert [path.name for path in checkpoints(tmp_path)] == ["00000002", "00000005", "00000009"]
    write(tmp_path, 6, keep=3)
    assert [path.name for path in checkpoints(tmp_path)] == ["00000002", "00000005", "00000006"]
    write(tmp_path, 6, keep=1, state={"again": True})
    assert [path.name for path in checkpoints(tmp_path)] == ["00000006"]
    loaded = latest(tmp_path, SPECS)
    assert loaded and loaded.state == {"again": True}


def test_a_damaged_newest_is_skipped_and_reported(tmp_path: Path) -> None:
    assert latest(tmp_path / "missing") is None
    lines: list[str] = []
    for step in (1, 2, 3):
        write(tmp_path, step)
    (tmp_path / "00000003" / "learner.pt").unlink()
    with (tmp_path / "00000002" / "mlp" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    loaded = latest(tmp_path, SPECS, lines.append)
    assert loaded and loaded.step == 1
    assert len(lines) == 2 and "learner.pt" in lines[0] and "saved as" in lines[1]
    (tmp_path / "00000001" / "state.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"no whole checkpoint.*start a new run"):
        latest(tmp_path, SPECS, lines.append)
    with pytest.raises(UserError, match=r"no such checkpoint.*00000001, 00000002"):
        load(tmp_path / "00000007")


def _without(spec: dict[str, Any]) -> None:
    del spec["agent"]["observations"][1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.update(name="vla"), 'name "mlp", this run\'s has "vla"'),
        (lambda s: s.update(chunk=8), "chunk 4, this run's has 8"),
        (lambda s: s["extra"].update(hidden=[64, 32]), "extra.hidden [64, 64], this run's has [64, 32]"),
        (lambda s: s["extra"].update(tokens=5), "extra.tokens missing, this run's has 5"),
        (lambda s: s["agent"]["observations"][0].update(unit="deg"), 'agent.observations[joint_pos].unit "rad"'),
        (lambda s: s["agent"]["actions"][0].update(shape=[6]), "agent.actions[joint_delta].shape [7]"),
        (_without, "agent.observations[cube_pos] "),
    ],
)
def test_another_spec_is_named_by_field(tmp_path: Path, change, field: str) -> None:
    path, other = write(tmp_path, 1), copy.deepcopy(SPEC)
    change(other)
    with pytest.raises(SpecMismatch) as caught:
        load(path, {"mlp": other})
    assert field in caught.value.line()
    with pytest.raises(SpecMismatch):
        latest(tmp_path, {"mlp": other})


@pytest.mark.parametrize("name", [*FILES, "state.json"])
def test_altered_and_truncated_files_are_found(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1)
    file, loaded = path / name, load(path)
    whole = file.read_bytes()
    step = max(1, len(whole) // 150)
    for at in range(0, len(whole), step):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
            file.write_bytes(data)
            try:
                again = load(path)
            except CorruptFile as error:
                assert str(file) in error.where and "resume from an earlier one" in error.fix
            else:  # another white space in state.json
                assert name == "state.json" and (again.step, again.state) == (loaded.step, loaded.state)


def test_policies_are_saved_apart_and_others_are_refused(tmp_path: Path) -> None:
    other = {"weight": np.ones(2, np.float32)}
    both = {"mlp": SavedPolicy(TENSORS, SPEC), "left.arm": SavedPolicy(other, SPEC | {"name": "left.arm"})}
    path = save(tmp_path, 1, both, LEARNER, {})
    loaded = load(path, {name: policy.spec for name, policy in both.items()})
    for name, policy in both.items():
        assert loaded.policies[name].tensors.keys() == policy.tensors.keys()
        assert read_policy(path, name).spec == policy.spec
    with pytest.raises(SpecMismatch, match=r"has a policy left\.arm"):
        load(path, SPECS)
    with pytest.raises(SpecMismatch, match="has no policy right"):
        load(path, {name: policy.spec for name, policy in both.items()} | {"right": SPEC})
    with pytest.raises(MessageError):
        save(tmp_path, 2, {"../out": both["mlp"]}, LEARNER, {})
    assert [found.name for found in checkpoints(tmp_path)] == ["00000001"]


def test_a_checkpoint_of_format_1_gives_weights_and_no_resume(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    for name in ("model.safetensors", "policy.json"):
        (path / "mlp" / name).rename(path / name)
    files = {name: _checksum(path / name) for name in ("model.safetensors", "policy.json", "learner.pt")}
    (path / "state.json").write_bytes(sealed({"step": 1, "files": files, "state": {}}))
    for refused in (lambda: load(path, SPECS), lambda: latest(tmp_path, SPECS)):
        with pytest.raises(UserError, match=r"format 1.*warm_start\.weights=") as caught:
            refused()
        assert "\n" not in caught.value.line()
    saved = read_policy(path, "mlp")
    assert saved.spec == SPEC and saved.tensors.keys() == TENSORS.keys()


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    path = write(tmp_path, 1)
    torch.save({"a": Evil()}, path / "learner.pt", pickle_module=pickle)
    body = {"format": FORMAT, "step": 1, "files": {name: _checksum(path / name) for name in FILES}, "state": {}}
    (path / "state.json").write_bytes(sealed(body))
    with pytest.raises(CorruptFile, match=r"learner\.pt"):
        load(path)
    assert not (tmp_path / "ran").exists()


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    log = folder / "saved"
    step = int(log.read_text().split()[-1]) + 1 if log.exists() else 1
    for _ in range(2):  # the second replaces a whole checkpoint
        save(folder / "checkpoints", step, POLICIES, {"big": np.full(2000, step)}, {"step": step}, keep=1)
        with log.open("a") as file:
            file.write(f"{step}\n")


def check(folder: Path, outcome: str) -> None:
    lines: list[str] = []
    saved = [int(line) for line in (folder / "saved").read_text().split()] if (folder / "saved").exists() else []
    loaded = latest(folder / "checkpoints", SPECS, lines.append)
    assert not lines, "a half-written checkpoint looks whole"
    if saved:
        assert loaded and loaded.step >= saved[-1], "a saved checkpoint is gone"
    if loaded:
        assert loaded.state["step"] == loaded.step and (loaded.learner["big"] == loaded.step).all()
    if outcome not in ("done", "killed"):
        assert outcome.startswith("InfrastructureError: no disk space"), outcome
        assert loaded is None and not list(folder.rglob(f"{TEMPORARY}*"))


def faults(mode: str, tmp_path: Path, *more: str) -> int:
    command = [sys.executable, str(FAULTS), mode, __file__, "work", "check", str(tmp_path), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


def test_killed_before_every_file_operation(tmp_path: Path) -> None:
    assert faults("calls", tmp_path) > 20


def test_killed_at_random_moments(tmp_path: Path) -> None:
    assert faults("random", tmp_path, "12") == 12


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    faults("limited", tmp_path, "0", "100", "1500", "15000")
