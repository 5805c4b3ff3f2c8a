"""`embodied serve` and all around it: pointers moved, edges, keys, several policies, gateways, the health page."""

import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from embodied.cli.main import run
from embodied.client import RemoteClient
from embodied.data import Observation, Rows
from embodied.errors import DeadlineExceeded, EmbodiedError, Unauthorized
from tests.cli.command import SMALL, embodied, one_line, start

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    done = embodied("train", *SMALL, "budget.env_steps=512", "name=a", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """A folder of runs of one's own, since pointers are moved in it."""
    shutil.copytree(trained / "runs", tmp_path / "runs", symlinks=True)
    return tmp_path


@contextmanager
def serving(*words: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A server that has said that it listens."""
    server = start("serve", *words, folder=folder)
    said = []
    try:
        assert server.stdout is not None
        for line in server.stdout:
            said.append(line)
            if line.startswith("serving policy"):
                break
        else:
            raise AssertionError("".join(said))
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.communicate(timeout=30)
        finally:
            server.kill()


class Robot:
    """Asks one server, again and again."""

    def __init__(self, address: str, keys: Path | None = None, policy: str = "") -> None:
        self.client = RemoteClient(address, timeout_s=LIMIT_S, credentials=keys, priority="robot", policy=policy)
        self.spec = self.client.hello()
        self.rows = Rows.of_envs(1)

    def version(self) -> int:
        """That of the next chunk."""
        streams = {s.name: np.zeros((1, *s.shape), s.dtype) for s in self.spec.agent.observations}
        self.rows.step += 1
        chunk = self.client.act(Observation(self.rows, streams, np.zeros(1)), self.rows.noise_keys(0), "mean")
        return int(chunk.versions[0])

    def until(self, version: int) -> None:
        """Ask until a version answers."""
        limit = time.monotonic() + LIMIT_S
        while (now := self.version()) != version:
            assert time.monotonic() < limit, f"version {now} answers, not {version}"
            time.sleep(0.05)


def page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def wait_healthy(address: str) -> None:
    """Wait until the server and its gateways are well."""
    limit = time.monotonic() + LIMIT_S
    while True:
        try:
            assert page(address, "/healthz") == "ok\n"
            return
        except urllib.error.HTTPError as error:
            assert time.monotonic() < limit, error.read()
            time.sleep(0.1)


def test_pins_and_rollbacks_change_the_answers(root: Path) -> None:
    address, http, openpi = f"ipc://{root}/policy", "127.0.0.1:47831", "127.0.0.1:47832"
    with serving("run=a", f"address={address}", f"http={http}", f"openpi={openpi}", folder=root):
        robot = Robot(address)
        assert robot.version() == 3
        for words, version in (
            (["pin", "1", "run=a"], 1),
            (["unpin", "run=a"], 3),
            (["rollback", "2", f"address={address}"], 2),
        ):
            done = embodied("weights", *words, folder=root)
            assert done.returncode == 0, done.stderr
            robot.until(version)
        assert "held:    since" in embodied("weights", "status", "run=a", folder=root).stdout
        assert "version 9 of mlp is not kept" in one_line(embodied("weights", "pin", "9", "run=a", folder=root))
        wait_healthy(http)
        limit = time.monotonic() + LIMIT_S
        while 'embodied_policy_version{policy="mlp"} 2.0' not in page(http, "/metrics"):  # a snapshot, a second old
            assert time.monotonic() < limit, "the metrics tell another version"
            time.sleep(0.2)
        while True:
            try:
                assert page(openpi, "/healthz") == "OK\n"
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < limit, "no openpi gateway"
                time.sleep(0.2)
    audit = (root / "runs" / "a" / "weights" / "audit.jsonl").read_text()
    assert audit.count('"event": "switch"') >= 3 and '"event": "rollback"' in audit


def test_an_edge_serves_on_when_its_upstream_is_gone(root: Path) -> None:
    upstream, edge = "tcp://127.0.0.1:47833", f"ipc://{root}/edge"
    with serving("run=a", f"address={upstream}", folder=root) as server:
        with serving(f"upstream={upstream}", "weights=kept", f"address={edge}", "name=arm", folder=root):
            robot = Robot(edge)
            assert robot.version() == 3
            server.kill()
            server.wait(10)
            assert robot.version() == 3
            assert embodied("weights", "rollback", "2", "run=a", folder=root).returncode == 0
            with serving("run=a", f"address={upstream}", folder=root):
                robot.until(2)
                limit = time.monotonic() + LIMIT_S
                client = RemoteClient(upstream, LIMIT_S)
                while (told := client.status()["followers"].get("arm", {}).get("serving", "")).split("-")[0] != "2":
                    assert time.monotonic() < limit, f"upstream believes that {told} is served"
                    time.sleep(0.2)
                client.close()
        with serving(f"upstream={upstream}", "weights=kept", f"address={edge}", folder=root):  # nobody is there
            assert Robot(edge).version() == 2


def test_a_damaged_version_keeps_no_server_from_starting(root: Path) -> None:
    [newest] = (root / "runs" / "a" / "weights" / "mlp").glob("3-*")
    tensors = newest / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-4])
    address = f"ipc://{root}/policy"
    with serving("run=a", f"address={address}", folder=root):
        assert Robot(address).version() == 2
    audit = (root / "runs" / "a" / "weights" / "audit.jsonl").read_text()
    assert '"why": "start"' in audit.splitlines()[-1]


def test_any_policy_and_any_server_are_measured_without_a_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    words = ["eval", "run=null", "task=reach", "episodes=4", "threads=1"]
    assert run(words) == 0
    assert "reach: success" in (inline := capsys.readouterr().out) and "versions 0" in inline
    address = f"ipc://{root}/policy"
    with serving("run=a", f"address={address}", folder=root):
        assert run([*words, "client=remote", f"client.address={address}", "client.timeout_s=60"]) == 0
    assert "versions 3" in capsys.readouterr().out


def test_credentials_permissions_and_several_policies(root: Path) -> None:
    shutil.copytree(root / "runs" / "a", root / "runs" / "b")
    for words in (
        ["create", "keys"],
        ["add", "keys", "arm", "permission=act"],
        ["add", "keys", "ops", "permission=administer,act"],
    ):
        assert embodied("credentials", *words, folder=root).returncode == 0
    address = "tcp://127.0.0.1:47834"
    words = ["policies={left: a, right: b}", "version=2", f"address={address}", "credentials=keys"]
    with serving(*words, folder=root):
        arm = Robot(address, root / "keys" / "clients" / "arm", policy="right")
        assert arm.version() == 2
        with pytest.raises(Unauthorized, match="arm may not send set_active"):
            arm.client.set_active("pinned", 1)
        with pytest.raises(DeadlineExceeded, match="credentials differ"):
            RemoteClient(address, timeout_s=1.0, policy="left").hello()
        listed = embodied(
            "weights", "status", f"address={address}", "policy=left", "credentials=keys/clients/ops", folder=root
        )
        assert listed.returncode == 0 and "2-" in listed.stdout, listed.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["upstream=tcp://127.0.0.1:47835"], "weights"),
        (["upstream=tcp://127.0.0.1:47835", "weights=kept"], "keeps nothing yet"),
        (["run=a", "openpi=0.0.0.0:47836"], "api_key"),
        (["run=a", "http=0.0.0.0:47836"], "this machine only"),
        (["run=a", "api_key=env:NOT_THERE", "openpi=127.0.0.1:47836"], "NOT_THERE"),
        (["run=a", "embodiment=libero", "openpi=127.0.0.1:47836"], "libero"),
        (["run=a", "embodiment=libera"], "did you mean libero"),
        (["run=a", "credentials=nowhere"], "nowhere"),
        (["policies={left: a, right: zzz}"], "no run zzz"),
        (["run=a", "max_rows=0"], "max_rows"),
        (["run=a", "task=reach"], "run=null"),
    ],
)
def test_a_mistake_in_serving_gets_one_line(
    trained: Path, tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(EmbodiedError) as caught:
        run(["serve", f"address=ipc://{tmp_path}/policy", *words])
    assert said in caught.value.line() and "\n" not in caught.value.line()
