"""`embodied doctor`: checks this machine, and prints the exact line that mends what is wrong."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

import zmq
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Console
from rich.table import Table
from rich.text import Text

import embodied
from embodied import machine
from embodied.errors import ConfigError

DISTRIBUTION = "embodied-rl"
EXTRAS = ("sim", "serve", "train", "vla", "ray", "view")
PYTHON = SpecifierSet(">=3.11")
GIB = 2**30

HELP = """\
Checks Python, cores, memory, disk, GL, the packages and their versions, ports, and packages that hide this one.
Exit status 0: nothing fails (warnings are allowed). 2: something does; its line says what mends it."""

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: What was checked.
        status: `ok`, `warn` (works, but less or slower) or `fail`.
        found: What is there.
        fix: The line that mends it; empty where nothing needs mending.
    """

    name: str
    status: Verdict
    found: str
    fix: str = ""


def check_python() -> list[Check]:
    found = f"{platform.python_version()} in {sys.prefix}"
    if not PYTHON.contains(platform.python_version(), prereleases=True):
        return [Check("python", "fail", found, "python3.11 -m venv .venv && .venv/bin/pip install embodied-rl")]
    return [Check("python", "ok", found)]


def check_cores() -> list[Check]:
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = machine.cgroup_cores()
    found = f"{usable} of {there} usable" + (f", quota {quota:g}" if quota < usable else "")
    if min(usable, quota) < 2:
        fix = "give the process two cores or more (taskset, container limits): physics and learning share one now"
        return [Check("cores", "warn", found, fix)]
    return [Check("cores", "ok", found)]


def check_memory() -> list[Check]:
    usable = machine.memory_limit()
    found = f"{usable / GIB:.1f} GiB"
    if usable < 2 * GIB:
        return [Check("memory", "fail", found, "use a machine or container with 4 GiB or more")]
    if usable < 4 * GIB:
        return [Check("memory", "warn", found, "embodied train rollout.num_envs=32")]
    return [Check("memory", "ok", found)]


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def check_runs(runs: Path) -> list[Check]:
    """Whether runs can be written, and whether there is room for them."""
    folder = _nearest_folder(runs)
    elsewhere = "embodied train runs=<a folder you may write to>"
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return [Check("runs folder", "fail", f"{folder}: {error.strerror}", elsewhere)]
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    writable = Check("runs folder", "ok", str(runs.absolute()))
    if free < GIB:
        return [writable, Check("disk", "fail", found, f"free space, or: {elsewhere}")]
    if free < 5 * GIB:
        return [writable, Check("disk", "warn", found, "embodied train episodes.quota_gb=0.5")]
    return [writable, Check("disk", "ok", found)]


def check_shared_memory() -> list[Check]:
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return [Check("shared memory", "warn", "no writable /dev/shm", "docker run --shm-size=1g ...")]
    size = shutil.disk_usage(path).total
    if size < GIB / 4:
        return [Check("shared memory", "warn", f"{size / 2**20:.0f} MiB", "docker run --shm-size=1g ...")]
    return [Check("shared memory", "ok", f"{size / GIB:.1f} GiB")]


def check_gl() -> list[Check]:
    if not all(map(importlib.util.find_spec, ("mujoco", "numba"))):
        return [Check("GL", "warn", "not tried without mujoco and numba", "pip install -e '.[sim]' in the clone")]
    from simulators import IGNORED_GL
    from simulators.render.gl import find_gl, gl_fix

    ignored = [Check("MUJOCO_GL", "warn", IGNORED_GL, "unset MUJOCO_GL")] if IGNORED_GL else []
    try:
        backend = find_gl()
    except ConfigError as error:
        return [*ignored, Check("GL", "fail", error.what, error.fix)]
    if backend:
        return [*ignored, Check("GL", "ok", backend)]
    given = [f"{name}={os.environ[name]}" for name in ("EMBODIED_GL", "PYOPENGL_PLATFORM") if os.environ.get(name)]
    found = f"none{', with ' if given else ''}{' and '.join(given)}: the ray caster draws"
    return [*ignored, Check("GL", "warn", found, gl_fix())]


def _installed(requirement: Requirement) -> str:
    try:
        return importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _select(extra: str, requirements: Sequence[str]) -> list[Requirement]:
    """Requirements of an extra, or the base install where `extra` is empty; extras within extras are followed."""
    found: list[Requirement] = []
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker and not (extra and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})):
            continue
        if not marker and extra:
            continue
        if requirement.name == DISTRIBUTION:
            found += [r for inner in sorted(requirement.extras) for r in _select(inner, requirements)]
        else:
            found.append(requirement)
    return found


def check_packages() -> list[Check]:
    """The base install and each extra: missing base packages and wrong versions fail, missing extras warn."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Check("packages", "fail", f"{DISTRIBUTION} is not installed", "pip install -e .")]
    checks = []
    for extra in ("", *EXTRAS):
        name, wanted = extra or "base", _select(extra, requirements)
        versions = {str(r): _installed(r) for r in wanted}
        missing = [r.name for r in wanted if not versions[str(r)]]
        wrong = [r for r in wanted if versions[str(r)] and not r.specifier.contains(versions[str(r)], prereleases=True)]
        if wrong:
            found = ", ".join(f"{r.name} {versions[str(r)]}, not {r.specifier}" for r in wrong)
            fix = "pip install " + " ".join(f"'{r.name}{r.specifier}'" for r in wrong)
            checks.append(Check(f"packages: {name}", "fail", found, fix))
        elif missing:
            target = f"-e '.[{extra}]' in the clone" if extra else "-e . in the clone"
            found = f"without {', '.join(missing)}"
            checks.append(Check(f"packages: {name}", "warn" if extra else "fail", found, f"pip install {target}"))
        else:
            found = ", ".join(f"{r.name} {versions[str(r)]}" for r in wanted)
            checks.append(Check(f"packages: {name}", "ok", found))
    return checks


def check_foreign() -> list[Check]:
    """Another distribution, or a folder on the path, that has the top-level name `embodied`."""
    owners = set(importlib.metadata.packages_distributions().get("embodied", [])) - {DISTRIBUTION}
    if owners:
        names = " ".join(sorted(owners))
        fix = f"pip uninstall -y {names} && pip install --force-reinstall --no-deps {DISTRIBUTION}"
        return [Check("package name", "fail", f"{names} also provides `embodied`", fix)]
    ours = {Path(folder).resolve() for folder in embodied.__path__}
    for entry in ["", *sys.path]:
        spec = PathFinder.find_spec("embodied", [entry or str(Path.cwd())])
        places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        foreign = [place for place in places if Path(place).resolve() not in ours]
        if foreign:
            fix = f"move {foreign[0]} away, or take {entry or 'this folder'} off PYTHONPATH"
            return [Check("package name", "fail", f"{foreign[0]} is another `embodied`", fix)]
    return [Check("package name", "ok", str(Path(embodied.__file__ or "").parent))]


def check_ports() -> list[Check]:
    """Whether a server could listen on loopback and on a local socket."""
    checks = []
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            checks.append(Check("tcp", "ok", f"127.0.0.1:{server.getsockname()[1]} can be bound"))
    except OSError as error:
        checks.append(
            Check("tcp", "fail", error.strerror or str(error), "ip link set lo up; serve over ipc:// until then")
        )
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.REP) as endpoint:
        address = f"ipc://{folder}/doctor"
        try:
            endpoint.bind(address)
            checks.append(Check("ipc", "ok", f"sockets in {tempfile.gettempdir()} can be bound"))
        except zmq.ZMQError as error:
            fix = "export TMPDIR=<a short path on a local disk>"
            checks.append(Check("ipc", "fail", f"{address}: {error.strerror}", fix))
    return checks


def check_all(runs: Path) -> list[Check]:
    """Every check, in the order shown."""
    checks: list[Callable[[], list[Check]]] = [
        check_python,
        check_cores,
        check_memory,
        partial(check_runs, runs),
        check_shared_memory,
        check_gl,
        check_packages,
        check_foreign,
        check_ports,
    ]
    return [found for check in checks for found in _guarded(check)]


def _guarded(check: Callable[[], list[Check]]) -> list[Check]:
    """The results of a check; one that fails is a result too."""
    try:
        return check()
    except Exception as error:
        name = getattr(check, "func", check).__name__.removeprefix("check_").replace("_", " ")
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return [Check(name, "fail", f"this check broke: {text}", "mend what it names, or report it")]


def show(checks: Sequence[Check], console: Console) -> None:
    """A table, then one line per thing to mend, which a reader can copy."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(Text(check.status, colours[check.status]), Text(check.name), Text(check.found))
    console.print(table)
    for check in checks:
        if check.fix:
            line = Text.assemble((f"{check.name}: ", colours[check.status]), check.fix)
            console.print(line, soft_wrap=True)


def main(arguments: Sequence[str]) -> int:
    """Run `embodied doctor`; returns the exit status."""
    parser = argparse.ArgumentParser("embodied doctor", description=HELP, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of {name, status, found, fix} instead")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder that will hold the runs (default: runs)"
    )
    options = parser.parse_args(list(arguments))
    checks = check_all(options.runs)
    if options.json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        show(checks, Console(highlight=False))
    return 2 if any(check.status == "fail" for check in checks) else 0


if __name__ == "__main__":
    # The command itself cannot start where a foreign `embodied` is installed; from the clone this can.
    sys.exit(main(sys.argv[1:]))
