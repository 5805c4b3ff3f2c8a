"""A run is served and compared with torch; which engine serves it is a word."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = [
    "policy.width=16", "policy.heads=2", "policy.kv_heads=1", "policy.ff=16", "policy.channels=[8,8]", "env.pixels=16",
    "warm_start.demonstrations=1", "warm_start.clone.steps=2", "warm_start.clone.batch=8", "rollout.num_envs=2",
    "rollout.steps=4", "budget.env_steps=16", "evaluate.episodes=2", "evaluate.final_episodes=2", "compare.split=null",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_served_run_says_what_torch_says(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "embodied.cli.main", "train", "experiment=vla_tokens", "name=a", *SMALL]
    subprocess.run(train, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    check = [sys.executable, ROOT / "tools" / "engine_agreement.py", "a", "--engine", "torch", "--rows", "5"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    apart, equal = json.loads(done.stdout.splitlines()[-1])["results"]
    assert apart["value"] <= apart["target"] == 1e-4
    assert equal["value"] == 1.0
