"""Order of the rooms: imports between them, circles, what a base install can import, and the length of files."""

import ast
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("embodied", "policies", "simulators", "robots")

# Longest prefix wins. A module imports its own room, or rooms of a lower rank.
RANKS = {
    "embodied": 0,
    "embodied.spec": 0,
    "embodied.data": 0,
    "embodied.episode": 0,
    "embodied.errors": 0,
    "embodied.noise": 0,
    "embodied.files": 0,
    "embodied.machine": 0,
    "embodied.build": 0,
    "embodied.settings": 0,
    "embodied.supervisor": 0,
    "embodied.wire": 1,
    "embodied.client": 1,
    "embodied.weights": 1,
    "embodied.buffer": 1,
    "embodied.rewards": 1,
    "embodied.monitor": 1,
    "robots.descriptions": 1,
    "robots.kinematics": 1,
    "robots.control": 1,
    "robots.safety": 1,
    "policies": 2,
    "simulators": 2,
    "simulators.isaac": 2,
    "robots": 2,
    "embodied.weight_sync": 3,
    "embodied.serving": 3,
    "embodied.gateways": 3,
    "embodied.gateways.openpi": 3,
    "embodied.gateways.groot": 3,
    "embodied.rollout": 3,
    "embodied.learning": 3,
    "embodied.runs": 4,
    "embodied.train": 4,
    "embodied.evaluate": 4,
    "embodied.runtime": 5,
    "embodied.cli": 6,
    "embodied.api": 7,
}
SAME_RANK = {
    ("embodied.client", "embodied.wire"),
    ("embodied.client", "embodied.weights"),
    ("robots.kinematics", "robots.descriptions"),
    ("robots.control", "robots.kinematics"),
    ("robots.control", "robots.descriptions"),
    ("robots.safety", "robots.kinematics"),
    ("robots.safety", "robots.descriptions"),
    ("simulators.isaac", "simulators"),
    ("embodied.gateways.openpi", "embodied.gateways"),
    ("embodied.gateways.groot", "embodied.gateways"),
    ("embodied.weight_sync", "embodied.serving"),
    ("embodied.evaluate", "embodied.runs"),
    ("embodied.train", "embodied.runs"),
    ("embodied.train", "embodied.evaluate"),
}
BASE = {room for room, rank in RANKS.items() if rank == 0}
# Gateways know the client, and nothing of the rest of serving.
GATEWAYS_KNOW = {"embodied.wire", "embodied.client", "policies", "embodied.gateways"}
# The collector gets a stopwatch; the rest of the monitor is for what reports.
MONITOR_READERS = {"embodied.runs", "embodied.train", "embodied.evaluate", "embodied.runtime", "embodied.cli"}
STOPWATCH = ("embodied.rollout", "embodied.monitor.timing")

# Third-party packages that stay in some rooms.
TORCH = {"policies", "simulators.isaac", "embodied.serving", "embodied.learning", "embodied.runs", "embodied.train",
         "embodied.evaluate", "embodied.runtime"}  # fmt: skip
CONFINED = {
    "torch": TORCH,
    "mujoco": {"simulators", "simulators.isaac"},
    "ray": {"embodied.runtime"},
    "gymnasium": {"simulators", "simulators.isaac"},
    "websockets": {"embodied.gateways", "embodied.gateways.openpi"},
    "simplejpeg": {"embodied.wire", "embodied.buffer"},
    "cryptography": {"embodied.weights"},
    "prometheus_client": {"embodied.serving"},
    "tensorboard": {"embodied.monitor"},
    "matplotlib": {"embodied.monitor"},
}
EXTRAS = ("torch", "mujoco", "ray", "numba", "gymnasium", "safetensors", "tensorboard", "matplotlib", "imageio",
          "websockets", "simplejpeg", "cryptography", "prometheus_client")  # fmt: skip
# Parts of rooms that only an extra makes usable; their room imports them where they are asked for.
OPTIONAL = ("simulators.worker.gymnasium_envs",)
LINES = 400


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the packages: dotted name and file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def room(module: str) -> str:
    """The room a module lies in: the longest known prefix."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        if (name := ".".join(parts[:count])) in RANKS:
            return name
    raise AssertionError(f"{module} lies in no room")


def imported(tree: ast.AST, module: str, is_package: bool, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, those within functions too; relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            prefix = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*prefix, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in known else base


def imports() -> list[tuple[str, Path, int, str]]:
    modules = list(sources())
    known = {name for name, _ in modules}
    return [
        (name, path, line, target)
        for name, path in modules
        for line, target in imported(ast.parse(path.read_text()), name, path.name == "__init__.py", known)
    ]


def allowed(importer: str, target: str) -> bool:
    mine, theirs = room(importer), room(target)
    if mine == theirs or (mine in BASE and theirs in BASE):
        return True
    if mine.startswith("embodied.gateways") and theirs not in BASE:
        return theirs in GATEWAYS_KNOW
    if theirs == "embodied.monitor":
        return mine in MONITOR_READERS or (mine, target) == STOPWATCH
    if mine == "embodied.monitor":
        return theirs in BASE
    return RANKS[theirs] < RANKS[mine] or (mine, theirs) in SAME_RANK


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path, line, target in imports()
        if target.split(".")[0] in PACKAGES and not allowed(name, target)
    ]
    assert not wrong, "\n".join(wrong)


def circles(graph: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """Strongly connected components of two nodes and more (Tarjan, 1972), each sorted."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in sorted(graph):
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        stack.append(root)
        walk = [(root, iter(sorted(graph[root])))]
        while walk:
            node, targets = walk[-1]
            for target in targets:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    stack.append(target)
                    walk.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    lowest[node] = min(lowest[node], order[target])
            else:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return found


def test_modules_import_in_no_circle() -> None:
    """Imports within functions and those for type checking count; a package's own `__init__` counts where it is
    named."""
    graph: dict[str, set[str]] = {name: set() for name, _ in sources()}
    for name, _, _, target in imports():
        if target in graph and target != name:
            graph[name].add(target)
    new = list(circles(graph))
    assert not new, "\n".join(" <-> ".join(circle) for circle in new)


def test_rooms_import_in_no_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in RANKS}
    for name, _, _, target in imports():
        if target.split(".")[0] in PACKAGES and (mine := room(name)) != (theirs := room(target)):
            graph[mine].add(theirs)
    new = list(circles(graph))
    assert not new, "\n".join(" <-> ".join(circle) for circle in new)


@pytest.mark.parametrize(
    ("arrows", "expected"),
    [
        ("a>b b>c a>c", []),
        ("a>b b>a", [["a", "b"]]),
        ("a>b b>c c>d d>b", [["b", "c", "d"]]),
        ("a>b b>a c>d d>e e>c a>c", [["a", "b"], ["c", "d", "e"]]),
    ],
)
def test_circles_of_any_length_are_found(arrows: str, expected: list[list[str]]) -> None:
    pairs = [arrow.split(">") for arrow in arrows.split()]
    graph: dict[str, set[str]] = {name: set() for pair in pairs for name in pair}
    for start, end in pairs:
        graph[start].add(end)
    assert sorted(circles(graph)) == expected


def test_heavy_packages_stay_in_their_rooms() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path, line, target in imports()
        if (package := target.split(".")[0]) in CONFINED and room(name) not in CONFINED[package]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "target", "may"),
    [
        ("embodied.wire.message", "embodied.errors", True),
        ("embodied.client.client", "embodied.wire.message", True),
        ("embodied.wire.message", "embodied.client.client", False),
        ("embodied.weights.manifest", "embodied.wire", False),
        ("robots.kinematics.chain", "robots.guard", False),
        ("simulators.tasks.reach", "robots.kinematics.chain", True),
        ("policies.mlp", "simulators.tasks.reach", False),
        ("embodied.learning.ppo", "policies.mlp", True),
        ("embodied.learning.ppo", "embodied.rollout.collector", False),
        ("embodied.rollout.collector", "embodied.monitor.stats", False),
        ("embodied.rollout.collector", "embodied.monitor.timing", True),
        ("embodied.monitor.metrics", "embodied.wire", False),
        ("embodied.train.loop", "embodied.monitor.stats", True),
        ("embodied.errors", "embodied.data", True),
        ("embodied.data", "embodied.wire", False),
        ("embodied.gateways.groot.server", "embodied.client", True),
        ("embodied.gateways.groot.server", "embodied.serving.server", False),
        ("embodied.gateways.groot.server", "embodied.gateways.listener", True),
        ("embodied.gateways.groot.server", "embodied.gateways.openpi.server", False),
        ("embodied.serving.core", "embodied.weight_sync.fetch", False),
        ("embodied.weight_sync.fetch", "embodied.serving.loader", True),
        ("embodied.train.loop", "embodied.runtime.serving", False),
    ],
)
def test_the_rule_itself(importer: str, target: str, may: bool) -> None:
    assert allowed(importer, target) is may


def test_imports_within_functions_and_relative_ones_are_seen() -> None:
    code = "def f():\n    from ..wire import message\n    import torch.nn\nfrom . import local\n"
    known = {"embodied.wire.message", "embodied.client.local"}
    found = set(imported(ast.parse(code), "embodied.client.client", False, known))
    assert found == {(2, "embodied.wire.message"), (3, "torch.nn"), (4, "embodied.client.local")}


def import_all(package: str) -> str:
    """Code that imports every file of a package but the optional ones."""
    names = [name for name, _ in sources() if f"{name}.".startswith(f"{package}.") and name not in OPTIONAL]
    return "".join(f"import {name}\n" for name in names)


def run_without(blocked: tuple[str, ...], code: str) -> str:
    """Run code in a fresh interpreter in which the top-level packages `blocked` cannot be imported."""
    program = textwrap.dedent(f"""
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {blocked!r}:
                    raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

        sys.meta_path.insert(0, Block())
    """)
    done = subprocess.run([sys.executable, "-c", program + code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module",
    ["robots", "robots.kinematics", "robots.control", "embodied.client", "embodied.wire", "embodied.buffer",
     "embodied.weights", "simulators.worker", "simulators.remote", "embodied.cli.sim_worker"],
)  # fmt: skip
def test_base_install_imports(module: str) -> None:
    """With every file of the room, on what a robot PC has installed."""
    run_without(EXTRAS, import_all(module))


def test_base_install_has_the_command() -> None:
    assert "doctor" in run_without(EXTRAS, "from embodied.cli.main import run\nrun(['--help'])")


def test_a_peer_that_runs_workers_has_the_base_install() -> None:
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = {line.partition("==")[0] for line in (ROOT / "peers/gymnasium-robotics.txt").read_text().splitlines()}
    assert {line.partition(">")[0] for line in base} <= pinned


def test_kinematics_and_control_pull_in_no_other_room() -> None:
    listing = f"import sys; print(*[name for name in sys.modules if name.split('.')[0] in {PACKAGES!r}])"
    loaded = {room(name) for name in run_without(EXTRAS, import_all("robots.control") + listing).split()}
    # `robots` itself is an empty file, which Python has to load on the way.
    assert loaded <= BASE | {"robots", "robots.descriptions", "robots.kinematics", "robots.control"}
    assert (ROOT / "robots" / "__init__.py").read_text().strip() == ""


def test_packages_say_what_they_are_for() -> None:
    for name, path in sources():
        if path.name == "__init__.py" and name != "robots":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{name} has no docstring"


def test_files_stay_short() -> None:
    files = [path for folder in (*PACKAGES, "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    long = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > LINES}
    assert not long, f"files longer than {LINES} lines: {long}"


@pytest.mark.slow
def test_wheel_is_complete(tmp_path: Path) -> None:
    """A wheel holds every module, every config and every robot description."""
    tree = tmp_path / "tree"
    skip = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs", "build", "dist")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skip)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w"]
    done = subprocess.run([*command, str(tmp_path), str(tree)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("embodied_rl-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for package in PACKAGES for path in (tree / package).rglob("*") if path.suffix in (".py", ".xml")]
    wanted = {str(path.relative_to(tree)) for path in files}
    wanted |= {f"embodied/{path.relative_to(tree)}" for path in (tree / "configs").rglob("*.yaml")}
    assert any(re.search(r"configs/task/.*\.yaml", name) for name in wanted)
    assert wanted <= held, sorted(wanted - held)
    assert not any(name.startswith("tests/") for name in held)
