import json
from pathlib import Path

import numpy as np

from embodied.runs.provenance import FILE, record_provenance


def test_every_start_is_a_line_with_commit_packages_and_machine(tmp_path: Path) -> None:
    record_provenance(tmp_path, 0)
    record_provenance(tmp_path, 1)
    first, second = (json.loads(line) for line in (tmp_path / FILE).read_text().splitlines())
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert first["packages"]["numpy"] == np.__version__ and "torch" in first["packages"]
    assert {"commit", "python", "platform", "machine", "cpu", "cores", "memory_gb", "gpu"} <= set(first)
