"""The examples run as their docstrings say, and stay short."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"


def run(name: str, *words: str, folder: Path) -> str:
    """Output of an example started in a folder."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_have_fewer_than_60_lines() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) == 5
    assert all(len(file.read_text().splitlines()) < 60 for file in files)


def test_a_package_outside_the_clone_has_its_own_task_and_robot(tmp_path: Path) -> None:
    package = shutil.copytree(FOLDER / "my_lab", tmp_path / "my_lab", ignore=shutil.ignore_patterns("__pycache__"))
    python = [sys.executable, "-m"]
    own = ["--config-dir", "my_lab/configs"]
    for words, said in (
        (["pytest", "-q", "-p", "no:cacheprovider", "tests"], "1 passed"),
        (["embodied.cli.main", "tasks", *own, "task=touch_post", "episodes=20"], "crane"),
        (
            ["embodied.cli.main", "eval", *own, "run=null", "task=touch_post", "splits=[slippery]", "episodes=4"],
            "slippery",
        ),
        (["embodied.cli.main", "play", "task=my_lab.touch_post", "robot=so101", "out=a.mp4"], "success"),
    ):
        environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
        done = subprocess.run(python + words, cwd=package, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


def test_an_environment_is_stepped_by_its_expert(tmp_path: Path) -> None:
    assert "success" in run("step_env", folder=tmp_path)


def test_training_from_python_leaves_episodes_that_pandas_reads(tmp_path: Path) -> None:
    said = run("train_from_python", "3000", folder=tmp_path)
    assert "on seeds 7000 to 7049:" in said
    table = run("read_episodes", "runs/latest", folder=tmp_path)
    assert "evaluation" in table and "robot" in table


def test_an_own_network_is_trained_and_loaded(tmp_path: Path) -> None:
    assert "policy residual" in run("own_policy", "3000", folder=tmp_path)


def test_a_server_is_asked(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/policy"
    words = ["run=null", "task=reach", f"address={address}"]
    command = [sys.executable, "-m", "embodied.cli.main", "serve", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and address in server.stdout.readline()
        assert "step 4: version 0" in run("ask_server", address, folder=tmp_path)
    finally:
        server.kill()
        server.wait(10)
