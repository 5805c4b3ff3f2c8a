"""A version that is damaged in the registry of a server is fetched again from its sender."""

from pathlib import Path

import pytest

from embodied.errors import WeightsHeld
from embodied.weights.registry import Registry
from tests.serving.tiny import SPEC, manifest
from tests.weight_sync.pushed import bench


def damage(store: Registry, number: int) -> None:
    file = store.path(SPEC.name, manifest(number).version) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("held", [False, True])
def test_a_push_of_a_damaged_version_mends_it(tmp_path: Path, held: bool) -> None:
    store = Registry(tmp_path)
    with bench(store=store) as b:
        b.push(1)
        b.push(2)
        damage(store, 1)
        if held:  # which keeps nobody from mending what is stored
            store.rollback(SPEC.name, 2)
            with pytest.raises(WeightsHeld):
                b.push(1, back=True)
        else:
            assert b.push(1, back=True)["number"] == 1 and b.served == (1, 1)
        assert Registry(tmp_path).read(SPEC.name, 1)
        assert "mend" in [line["event"] for line in store.audit()]
