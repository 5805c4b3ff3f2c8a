"""Commands, links and code of the README and the docs work."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from embodied.cli.compose import compose_config
from embodied.evaluate.settings import EvalSettings
from embodied.runs.settings import Settings, typed
from embodied.runtime.serve_settings import ServeSettings

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"train": Settings, "eval": EvalSettings, "serve": ServeSettings}


def commands(page: Path) -> list[str]:
    """`embodied train|eval|serve` commands in code of a page."""
    text = page.read_text()
    code = re.findall(r"```[a-z]*\n(.*?)```", text, re.S) + re.findall(r"`([^`\n]+)`", text)
    lines = [line.split("#")[0].strip() for block in code for line in block.splitlines()]
    return [line for line in lines if re.match(r"embodied (train|eval|serve) [^<]+$", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_compose(page: Path) -> None:
    for line in commands(page):
        _, command, *words = shlex.split(line)
        words = [word for word in words if word not in ("--json", "--help")]
        if "task=touch_cube" not in words and "robot=ur5e" not in words:  # what new-task.md and new-robot-model.md make
            typed(KINDS[command], compose_config(command, words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_client_of_the_deploy_page_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)[0]
    address = "tcp://127.0.0.1:5555"
    assert address in code
    serve = [sys.executable, "-m", "embodied.cli.main", "serve", "run=null", "task=reach", "address=tcp://127.0.0.1:0"]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"tcp://127\.0\.0\.1:\d+", said)
        assert found, said
        code = code.replace(address, found[0]).replace("timeout_s=2.0", "timeout_s=60.0")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["version 0"] * 3


@pytest.mark.peer
def test_openpis_client_of_the_deploy_page_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)[1]
    words = ["run=null", "task=reach", f"address=ipc://{tmp_path}/policy", "openpi=127.0.0.1:47821"]
    serve = [sys.executable, "-m", "embodied.cli.main", "serve", *words]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        assert "serving policy mlp" in server.stdout.readline()
        assert "ws://127.0.0.1:47821" in server.stdout.readline()
        python = ROOT / ".venvs" / "openpi-client" / "bin" / "python"
        done = subprocess.run(
            [python, "-c", code.replace("8000", "47821")], capture_output=True, text=True, timeout=120
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == ["(1, 7) 0"] * 3 + ["(7,)"]


def test_the_new_task_of_its_page_works(tmp_path: Path) -> None:
    """Its two files are written where the page says, into a copy of the clone, and its commands are run."""
    for folder in ("embodied", "simulators", "robots", "policies", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "docs" / "new-task.md").read_text()
    files = re.findall(r"^`((?:simulators|configs)/[\w/]+\.\w+)`:\n\n```\w+\n(.*?)```", text, re.S | re.M)
    assert [Path(name).name for name, _ in files] == ["touch_cube.py", "touch_cube.yaml"]
    for name, code in files:
        (tmp_path / name).write_text(code)

    def run(command: str) -> str:
        words = [sys.executable, "-m", "embodied.cli.main", *command.split()]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = run("tasks task=touch_cube episodes=100 --json")
    assert json.loads(found.splitlines()[-1])["success_rate"] >= 0.95
    run("play task=touch_cube out=touch.mp4 render=ray")
    assert (tmp_path / "touch.mp4").stat().st_size > 1000
    run("train task=touch_cube budget.env_steps=2000 render.episodes=0 evaluate.final_episodes=10")
