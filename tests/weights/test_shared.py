import errno
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from embodied.weights.manifest import Manifest
from embodied.weights.shared import SharedBlock, open_block
from embodied.weights.transfer import views

SPAWN = multiprocessing.get_context("spawn")
TENSORS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(3, dtype=np.uint8)}
MANIFEST = Manifest.of("tiny", 1, TENSORS, {})

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared on Linux only")


def hold(pipe: Connection) -> None:
    block = SharedBlock()
    pipe.send(block.hold(MANIFEST, TENSORS))
    pipe.recv()


def test_another_process_reads_and_goes_on_after_the_owner_was_killed() -> None:
    ours, theirs = SPAWN.Pipe()
    owner = SPAWN.Process(target=hold, args=(theirs,), daemon=True)
    owner.start()
    assert ours.poll(60)
    name = ours.recv()
    content = open_block(name, MANIFEST.nbytes)
    assert content is not None and not content.flags.writeable
    owner.kill()
    owner.join(10)
    MANIFEST.verify(views(content, MANIFEST.tensors))
    assert open_block(name, MANIFEST.nbytes) is None


def test_one_block_holds_one_version_after_the_other() -> None:
    with SharedBlock() as block:
        name = block.hold(MANIFEST, TENSORS)
        content = open_block(name, MANIFEST.nbytes)
        second = {name: array + 1 for name, array in TENSORS.items()}
        newer = Manifest.of("tiny", 2, second, {})
        assert block.hold(newer, second) == name
        assert content is not None
        newer.verify(views(content, newer.tensors))
        larger = {"a": np.zeros(10, np.uint8)}
        assert block.hold(Manifest.of("tiny", 3, larger, {}), larger) != name
        assert open_block(name, MANIFEST.nbytes) is None
    assert open_block(name, 10) is None


def test_only_a_whole_block_of_this_user_is_opened() -> None:
    with SharedBlock() as block:
        name = block.hold(MANIFEST, TENSORS)
        pid, fd, token = name.split("-")
        assert open_block(name, MANIFEST.nbytes) is not None
        for other in (
            "", "x", f"{pid}-{fd}-{token[:-1]}", f"{pid}-{fd}-{'0' * 32}", f"{pid}-0-{token}", f"1-{fd}-{token}",
            f"../{name}", f"{name}\0", f"99999999-{fd}-{token}", None, 7,
        ):  # fmt: skip
            assert open_block(other, MANIFEST.nbytes) is None
        assert open_block(name, MANIFEST.nbytes + 1) is None and open_block(name, 0) is None
    open_ended = os.memfd_create(f"embodied-weights-{'a' * 32}", os.MFD_CLOEXEC)
    os.ftruncate(open_ended, 27)
    assert open_block(f"{os.getpid()}-{open_ended}-{'a' * 32}", 27) is None  # it could shrink while it is read
    os.close(open_ended)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_without_memory_there_is_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert SharedBlock().hold(MANIFEST, TENSORS) == ""
    assert descriptors() == before
    monkeypatch.undo()
    with SharedBlock() as block:
        block.hold(MANIFEST, TENSORS)
    assert descriptors() == before
