"""The benchmark of inference and cloning runs, and names its results."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_measures_both_sides_of_a_tiny_policy() -> None:
    script = [sys.executable, "tools/bench/policy.py", "--policies", "film", "--pixels", "16", "--rounds", "1"]
    tiny = ["--seconds", "0.001", "--steps", "1", "--held", "16", "--batch", "8"]
    done = subprocess.run([*script, *tiny], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    results = {row["name"]: row for row in json.loads(done.stdout.splitlines()[-1])["results"]}
    one, eight = "infer_over_torch_film_1", "infer_over_torch_film_8"
    assert set(results) == {"infer_over_torch", one, eight, "sft_step_over_torch"}
    assert {name: row["target"] for name, row in results.items() if row["target"]} == {
        "infer_over_torch": 0.9,
        "sft_step_over_torch": 0.9,
    }
    assert all(row["value"] > 0 and row["sense"] == ">=" for row in results.values())
