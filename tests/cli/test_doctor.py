import importlib.metadata
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied import machine
from embodied.cli import doctor
from embodied.cli.doctor import GIB, Check


@pytest.fixture
def no_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for GL starts processes; the tests of the renderer do that."""
    monkeypatch.setattr(doctor, "check_gl", lambda: [Check("GL", "ok", "egl")])


def _fixed(**values: object) -> Callable[..., SimpleNamespace]:
    return lambda *_: SimpleNamespace(**values)


def test_this_machine(no_gl: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert doctor.main(["--json", "--runs", str(tmp_path / "runs")]) == 0
    checks = json.loads(capsys.readouterr().out)
    names = {check["name"] for check in checks}
    assert names >= {"python", "cores", "memory", "disk", "GL", "packages: base", "package name", "tcp", "ipc"}
    assert all(set(check) == {"name", "status", "found", "fix"} for check in checks)
    assert all(bool(check["fix"]) is (check["status"] != "ok") for check in checks)
    assert not (tmp_path / "runs").exists()


def test_the_table_ends_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    long = "pip install " + " ".join(f"package-{i}" for i in range(20))
    checks = [Check("python", "ok", "3.11"), Check("GL", "warn", "none", long), Check("tcp", "fail", "no", "ip link")]
    monkeypatch.setattr(doctor, "check_all", lambda runs: checks)
    assert doctor.main([]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["ok", "warn", "fail"]
    assert lines[3:] == [f"GL: {long}", "tcp: ip link"]


def test_warnings_alone_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_all", lambda runs: [Check("GL", "warn", "none", "apt-get install ...")])
    assert doctor.main([]) == 0


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.14")
    (check,) = doctor.check_python()
    assert check.status == "fail" and "python3.11" in check.fix


@pytest.mark.parametrize(
    ("cores", "quota", "status"), [(2, float("inf"), "ok"), (1, float("inf"), "warn"), (8, 1.5, "warn")]
)
def test_cores(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float, status: str) -> None:
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(machine, "cgroup_cores", lambda: quota)
    (check,) = doctor.check_cores()
    assert check.status == status and check.found.startswith(f"{cores} of")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_core_quotas_of_both_cgroup_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cores: float
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cgroup_cores() == cores


@pytest.mark.parametrize(("gib", "status"), [(1, "fail"), (3, "warn"), (64, "ok")])
def test_memory_within_a_container(monkeypatch: pytest.MonkeyPatch, gib: int, status: str) -> None:
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 128 * GIB // 4096)
    monkeypatch.setattr(machine, "number", lambda path, place=0: float(gib * GIB))
    (check,) = doctor.check_memory()
    assert (check.status, check.found) == (status, f"{gib}.0 GiB")


@pytest.mark.parametrize(("free", "status"), [(GIB // 2, "fail"), (3 * GIB, "warn"), (50 * GIB, "ok")])
def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", _fixed(free=free))
    folder, disk = doctor.check_runs(tmp_path / "not" / "yet" / "there")
    assert (folder.status, disk.status) == ("ok", status)
    assert str(tmp_path) in disk.found
    assert not list(tmp_path.iterdir())


def test_a_runs_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
    (check,) = doctor.check_runs(tmp_path)
    assert check.status == "fail" and "Permission denied" in check.found and "runs=" in check.fix


def test_a_runs_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert doctor.check_runs(tmp_path / "runs")[0].status == "fail"


@pytest.mark.parametrize(("mib", "status"), [(64, "warn"), (1024, "ok")])
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, mib: int, status: str) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", _fixed(total=mib * 2**20))
    assert doctor.check_shared_memory()[0].status == status


def test_gl_is_not_tried_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    (check,) = doctor.check_gl()
    assert (check.status, check.fix) == ("warn", "pip install -e '.[sim]' in the clone")


@pytest.mark.parametrize(
    ("setting", "status", "fix"), [("off", "warn", "unset EMBODIED_GL"), ("vulkan", "fail", "egl")]
)
def test_gl_that_is_turned_off(monkeypatch: pytest.MonkeyPatch, setting: str, status: str, fix: str) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setenv("EMBODIED_GL", setting)
    (check,) = doctor.check_gl()
    assert check.status == status and fix in check.fix


def test_a_check_that_breaks_is_a_result(monkeypatch: pytest.MonkeyPatch, no_gl: None, tmp_path: Path) -> None:
    def broken() -> list[Check]:
        raise RuntimeError("invalid value for environment variable X\nmore")

    broken.__name__ = "check_shared_memory"
    monkeypatch.setattr(doctor, "check_shared_memory", broken)
    checks = {check.name: check for check in doctor.check_all(tmp_path)}
    assert checks["shared memory"].status == "fail" and "invalid value" in checks["shared memory"].found
    assert "tcp" in checks


def test_gl_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gl = pytest.importorskip("simulators.render.gl")
    monkeypatch.delenv("EMBODIED_GL", raising=False)
    monkeypatch.setattr(gl, "find_gl", lambda: None)
    (check,) = doctor.check_gl()
    assert check.status == "warn" and "apt-get install" in check.fix


REQUIRES = [
    "numpy>=2.0",
    'mujoco<5,>=4.0; extra == "sim"',
    'torch>=2.4; extra == "serve"',
    'embodied-rl[serve]; extra == "train"',
    'matplotlib>=3.9; extra == "train"',
    'embodied-rl[serve]; extra == "vla"',
    'transformers>=5.16.1,<5.20; extra == "vla"',
    'peft>=0.21; extra == "vla"',
    'ray>=2.40; extra == "ray"',
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = {"numpy": "2.1", "mujoco": "4.0.0", "torch": "2.13.0+cpu", "matplotlib": "3.10"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    return versions


def _packages() -> dict[str, Check]:
    return {check.name.removeprefix("packages: "): check for check in doctor.check_packages()}


def test_a_missing_extra_warns_with_the_line_that_installs_it(installed: dict[str, str]) -> None:
    checks = _packages()
    assert checks["ray"] == Check("packages: ray", "warn", "without ray", "pip install -e '.[ray]' in the clone")
    found, fix = "without transformers, peft", "pip install -e '.[vla]' in the clone"
    assert checks["vla"] == Check("packages: vla", "warn", found, fix)
    assert {checks[name].status for name in ("base", "sim", "serve", "train")} == {"ok"}
    assert checks["train"].found == "torch 2.13.0+cpu, matplotlib 3.10"


def test_a_wrong_version_fails_with_the_line_that_mends_it(installed: dict[str, str]) -> None:
    installed["mujoco"] = "3.9.1"
    check = _packages()["sim"]
    assert check.status == "fail" and "mujoco 3.9.1" in check.found
    assert check.fix == "pip install 'mujoco<5,>=4.0'"


def test_a_missing_base_package_fails(installed: dict[str, str]) -> None:
    del installed["numpy"]
    assert _packages()["base"] == Check("packages: base", "fail", "without numpy", "pip install -e . in the clone")


def test_not_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "requires", requires)
    (check,) = doctor.check_packages()
    assert (check.status, check.fix) == ("fail", "pip install -e .")


def test_a_foreign_distribution_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"embodied": ["embodied-rl", "embodied"]}
    monkeypatch.setattr(doctor.importlib.metadata, "packages_distributions", lambda: owners)
    (check,) = doctor.check_foreign()
    assert check.status == "fail" and check.fix.startswith("pip uninstall -y embodied &&")


@pytest.mark.parametrize("path", ["embodied/__init__.py", "embodied.py"])
def test_a_foreign_folder_of_the_same_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (check,) = doctor.check_foreign()
    assert check.status == "fail" and str(tmp_path) in check.fix


def test_only_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (check,) = doctor.check_foreign()
    assert check.status == "ok"


def test_ports_that_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(doctor.socket, "create_server", refuse)
    tcp, ipc = doctor.check_ports()
    assert (tcp.status, ipc.status) == ("fail", "ok")
    assert "Cannot assign" in tcp.found


def test_a_temporary_folder_too_deep_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(deep))
    ipc = doctor.check_ports()[1]
    assert ipc.status == "fail" and "TMPDIR" in ipc.fix
    assert not list(deep.iterdir())
