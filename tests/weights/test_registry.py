"""The registry: no number names two contents, no half version is read, whatever is killed or altered."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embodied.errors import CorruptFile, DeadlineExceeded, MessageError, UserError, WeightsRefused
from embodied.files import TEMPORARY, Lock
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry

SPEC = {"name": "mlp", "chunk": 2}
FAULTS = Path(__file__).parents[1] / "faults.py"


def tensors(value: float = 0.0) -> dict[str, np.ndarray]:
    return {"weight": np.full((4, 3), value, np.float32), "steps": np.array(7, np.int64)}


def publish(registry: Registry, value: float = 0.0, policy: str = "mlp") -> int:
    return registry.publish(policy, registry.reserve(policy), tensors(value), SPEC).number


def test_publish_and_read(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "weights")
    assert [publish(registry, 1.0), publish(registry, 2.0), publish(registry, 3.0, "other")] == [1, 2, 1]
    manifest, read = registry.read("mlp", "latest")
    assert (manifest.number, manifest.spec) == (2, SPEC)
    assert {name: array.dtype for name, array in read.items()} == {"weight": np.float32, "steps": np.int64}
    np.testing.assert_array_equal(read["weight"], tensors(2.0)["weight"])
    assert read["weight"].flags.writeable
    assert Registry(tmp_path / "weights").read("mlp", 1)[1]["weight"][0, 0] == 1.0
    assert [(entry.policy, entry.version.number, entry.damage) for entry in registry.ls()] == [
        ("mlp", 1, ""), ("mlp", 2, ""), ("other", 1, "")]  # fmt: skip
    assert (tmp_path / "weights" / "mlp" / manifest.label / "model.safetensors").is_file()


def test_a_number_names_one_content(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first, second = registry.reserve("mlp"), registry.reserve("mlp")
    manifest = registry.publish("mlp", second, tensors(2.0), SPEC)
    assert registry.publish("mlp", second, tensors(2.0), SPEC) == manifest
    with pytest.raises(WeightsRefused, match=f"number 2 already names {manifest.label}"):
        registry.publish("mlp", second, tensors(5.0), SPEC)
    with pytest.raises(WeightsRefused, match="version 1 is older than 2-"):
        registry.publish("mlp", first, tensors(1.0), SPEC)
    with pytest.raises(WeightsRefused, match="version 3 was never reserved"):
        registry.publish("mlp", 3, tensors(1.0), SPEC)
    with pytest.raises(MessageError, match="policy name"):
        registry.reserve("../mlp")
    assert [entry.version for entry in registry.ls()] == [manifest.version]


def test_unknown_names_get_one_line(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry)
    with pytest.raises(UserError, match=r"no weights of policy mpl .*did you mean mlp"):
        registry.read("mpl", "latest")
    with pytest.raises(WeightsRefused, match=r"version 9 of mlp is not kept .*versions kept: 1"):
        registry.read("mlp", 9)
    with pytest.raises(UserError):
        registry.read("..", "latest")


def test_retention_spares_what_pointers_name(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=2)
    publish(registry, 1)
    registry.pin("mlp", 1)
    publish(registry, 2)
    publish(registry, 3)
    registry.pair("mlp", {2: 10, 3: 20, 9: 30})
    for value in (4, 5, 6):
        publish(registry, value)
    assert kept(registry) == {1: "pinned serving", 2: "at 10", 3: "at 20", 5: "", 6: ""}
    registry.unpin("mlp")
    registry.pair("mlp", {3: 20})
    assert publish(registry, 7) == 7
    assert kept(registry) == {3: "at 20", 6: "", 7: "serving"}
    events = [(event["event"], event["version"].partition("-")[0]) for event in registry.audit()]
    assert ("publish", "7") in events and ("pin", "1") in events and ("prune", "1") in events
    for wrong in ({"keep": 0}, {"keep": True}, {"keep": 1.5}, {"quota_bytes": -1}, {"lock_s": -1}, {"lock_s": np.nan}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Registry(tmp_path, **wrong)


def kept(registry: Registry) -> dict[int, str]:
    """Version number to what `ls` says of it."""
    found = {}
    for entry in registry.ls():
        words = [name for name in ("pinned", "serving", "held", "signed") if getattr(entry, name)]
        words += [] if entry.checkpoint is None else [f"at {entry.checkpoint}"]
        found[entry.version.number] = " ".join(words)
    return found


def test_a_quota_deletes_the_oldest_but_what_is_needed(tmp_path: Path) -> None:
    size = Registry(tmp_path).size("mlp", Registry(tmp_path).find("mlp", publish(Registry(tmp_path))))
    registry = Registry(tmp_path, keep=50, quota_bytes=4 * size + size // 2)  # times of creation differ in length
    for value in (2, 3, 4):
        publish(registry, value)
    registry.pair("mlp", {1: 5})
    registry.pin("mlp", 3)
    assert list(kept(registry)) == [1, 2, 3, 4]
    publish(registry, 5)
    publish(registry, 6)
    assert list(kept(registry)) == [1, 3, 5, 6]
    registry = Registry(tmp_path, keep=50, quota_bytes=1)
    assert publish(registry, 7) == 7, "a quota too small for what must stay stops nothing"
    assert list(kept(registry)) == [1, 3, 7]


def test_damaged_pointers_stop_pruning_and_are_named(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=1)
    publish(registry, 1)
    registry.pin("mlp", 1)
    (tmp_path / "active.json").write_text("{")
    assert [publish(registry, 2), publish(registry, 3)] == [2, 3]
    assert registry.find("mlp", 1) and registry.audit()[-1]["event"] == "not_pruned"
    for ask in (registry.pointers, registry.active, registry.held, registry.unpin, registry.resume):
        with pytest.raises(CorruptFile, match=r"active\.json.*delete it"):
            ask("mlp")


def test_a_torn_audit_line_is_left_out_and_closed(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry)
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"event": "publ')
    publish(registry, 1)
    assert [event["version"][0] for event in registry.audit()] == ["1", "2"]


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_every_altered_or_missing_byte_is_found(tmp_path: Path, name: str) -> None:
    registry = Registry(tmp_path)
    publish(registry, 1.5)
    entry = registry.ls()[0]
    file = entry.path / name
    whole, expected = file.read_bytes(), registry.read("mlp", 1)[1]
    for at in range(len(whole)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
            file.write_bytes(data)
            try:
                _, read = registry.read("mlp", 1)
            except CorruptFile as error:
                assert str(file) in error.where and "delete" in error.fix
            else:  # white space in JSON, or the end of the file, which mean the same either way
                assert json.loads(data) == json.loads(whole) if name == "manifest.json" else len(data) == len(whole)
                assert all((read[key] == expected[key]).all() for key in expected)
    file.write_bytes(whole + b"x")
    with pytest.raises(CorruptFile):
        registry.read("mlp", 1)
    file.unlink()
    with pytest.raises(CorruptFile, match="cannot be read"):
        registry.read("mlp", 1)
    entry = registry.ls()[0]
    assert bool(entry.damage) == (name == "manifest.json")


def test_an_altered_count_is_refused_not_reused(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for _ in range(12):
        registry.reserve("mlp")
    file = tmp_path / "numbers.json"
    file.write_text(file.read_text().replace("12", "02"))
    with pytest.raises(CorruptFile, match=r"numbers\.json.*delete it"):
        registry.reserve("mlp")
    file.unlink()
    assert registry.reserve("mlp") == 1


def test_leftovers_of_a_killed_writer_are_removed_unless_one_is_at_work(tmp_path: Path) -> None:
    publish(Registry(tmp_path))
    left = tmp_path / "mlp" / f"{TEMPORARY}2-ab12cd34ef56.1"
    left.mkdir()
    code = f"""if 1:
        import sys; from pathlib import Path; from embodied.files import Lock
        lock = Lock(Path({str(tmp_path)!r}) / ".lock")
        assert lock.try_acquire()
        print("held", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        registry = Registry(tmp_path, lock_s=0.1)
        assert left.exists()
        with pytest.raises(DeadlineExceeded, match=f"pid {holder.pid} kept the lock .* reserve a version of mlp"):
            registry.reserve("mlp")
        holder.kill()
    assert registry.reserve("mlp") == 2 and not left.exists()


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(lambda _: registry.reserve("mlp"), range(40))) == list(range(1, 41))
    with Lock(tmp_path / ".lock").acquire(1, "test"), pytest.raises(DeadlineExceeded, match="this process"):
        Lock(tmp_path / ".lock").acquire(0.01, "test")


def test_processes_never_get_the_same_number(tmp_path: Path) -> None:
    code = f"""if 1:
        from embodied.weights.registry import Registry
        registry = Registry({str(tmp_path)!r})
        print(*(registry.reserve("mlp") for _ in range(30)))
    """
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    numbers = [int(word) for process in running for word in process.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 91))


def test_latest_survives_pruning_while_it_is_read(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=1)
    publish(registry)
    reading = """if 1:
        import sys; from embodied.weights.registry import Registry
        registry, last = Registry(sys.argv[1]), 0
        while last < 60:
            manifest, tensors = registry.read("mlp", "latest")
            assert manifest.number >= last; last = manifest.number
    """
    process = subprocess.Popen([sys.executable, "-c", reading, str(tmp_path)], stderr=subprocess.PIPE)
    while process.poll() is None and publish(registry, os.getpid()) < 2000:
        pass
    assert process.communicate(timeout=60)[1] == b""


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    registry = Registry(folder / "weights", keep=2)
    number = registry.reserve("mlp")
    with (folder / "reserved").open("a") as file:
        file.write(f"{number}\n")
    content = {"weight": np.frombuffer(os.urandom(4096), np.uint8)}
    manifest = registry.publish("mlp", number, content, SPEC)
    with (folder / "published").open("a") as file:
        file.write(f"{manifest.label}\n")
    registry.pin("mlp", number)


def check(folder: Path, outcome: str) -> None:
    left = list(folder.rglob(f"{TEMPORARY}*"))
    reserved = (
        [int(line) for line in (folder / "reserved").read_text().split()] if (folder / "reserved").exists() else []
    )
    published = (folder / "published").read_text().split() if (folder / "published").exists() else []
    assert len(set(reserved)) == len(reserved), "a number was given out twice"
    registry = Registry(folder / "weights", keep=2)
    on_disk = [entry.version.label for entry in registry.ls()]
    for label in on_disk:
        assert registry.read("mlp", int(label.split("-")[0]))[0].label == label
    names = {}
    for label in published + on_disk:
        number, _, content = label.partition("-")
        assert names.setdefault(number, content) == content, "a number names two contents"
    last = Version.parse(published[-1]) if published else Version(0, "")
    newer = [label for label in on_disk if Version.parse(label).number > last.number]
    assert not published or last.label in on_disk or len(newer) >= 2, "what was published is gone"
    for version in registry.pointers("mlp").named:
        registry.read("mlp", version.label)
    registry.audit()
    assert registry.reserve("mlp") > max(reserved, default=0)
    assert not list(folder.rglob(f"{TEMPORARY}*"))
    if outcome not in ("done", "killed"):
        assert outcome.startswith("InfrastructureError: no disk space"), outcome
        assert not on_disk and not left


def faults(mode: str, tmp_path: Path, *more: str) -> int:
    command = [sys.executable, str(FAULTS), mode, __file__, "work", "check", str(tmp_path), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


def test_killed_before_every_file_operation(tmp_path: Path) -> None:
    assert faults("calls", tmp_path) > 30


def test_killed_at_random_moments(tmp_path: Path) -> None:
    assert faults("random", tmp_path, "30") == 30


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    faults("limited", tmp_path, "0", "100", "1000", "4000", "4100")
