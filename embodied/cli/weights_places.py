"""Places where `embodied weights` moves pointers: a registry on this disk, or the one behind a policy server."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from omegaconf import OmegaConf

from embodied.errors import ConfigError, EmbodiedError, InfrastructureError, MessageError, UserError, nearest
from embodied.runs.run_folder import resolve
from embodied.runs.settings import saved_config
from embodied.weights.pointers import BY_SERVER
from embodied.weights.registry import Entry, Registry
from embodied.wire import addresses
from embodied.wire.endpoint import Requester

State = dict[str, Any]
"""`policy`, `active`, `pinned` (labels, empty for none), `held` (null or a hold's fields), and what the place knows."""

_LINES = 10
_SWITCH_S = 5.0
_LOOK_S = 0.05


class Place(Protocol):
    """Versions and their pointers. Every move returns the state then; all raise `EmbodiedError`s.

    Attributes:
        verb: What a version is said to be once the pointers are at it: `served` where that was seen.
    """

    verb: str

    @property
    def words(self) -> str:
        """Words that name the place in a command."""
        ...

    def entries(self) -> list[Entry]: ...

    def state(self) -> State: ...

    def restorable(self) -> int | None:
        """Step of the checkpoint that `restore=true` would go back to; None for none."""
        ...

    def pin(self, version: int | str, by: str) -> State: ...

    def unpin(self, by: str) -> State: ...

    def rollback(self, version: int | str | None, by: str, note: str) -> State: ...

    def resume(self, restore: bool, by: str) -> State: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class OnDisk:
    """One policy of a registry, of a run if `run` is given."""

    registry: Registry
    policy: str
    words: str
    run: Path | None = None
    verb = "active"

    @classmethod
    def of(cls, run: str, runs: str, weights: str, policy: str) -> Self:
        """The policy of a run, or of a folder of weights.

        Raises:
            UserError: There is no such run, folder or policy, or there are several policies.
        """
        found = None if weights else resolve(run, Path(runs))
        folder = Path(weights) if found is None else found / "weights"
        known = Registry(folder).policies()
        if not known:
            what = "no weights are here" if folder.is_dir() else "no such folder of weights"
            fix = (
                f"give weights={folder}/weights" if (folder / "weights").is_dir() else "give run=NAME or weights=FOLDER"
            )
            raise UserError(what, str(folder), fix)
        if policy not in known and (policy or len(known) > 1):
            what = f"no weights of policy {policy}" if policy else f"there are {len(known)} policies"
            raise UserError(what, str(folder), nearest(policy, known) if policy else f"give policy={'|'.join(known)}")
        name = policy or known[0]
        words = f"weights={weights}" if found is None else f"run={run}" + ("" if runs == "runs" else f" runs={runs}")
        return cls(Registry(folder), name, words + (f" policy={name}" if len(known) > 1 else ""), found)

    def entries(self) -> list[Entry]:
        return [entry for entry in self.registry.ls() if entry.policy == self.policy]

    def state(self) -> State:
        registry, pointers = self.registry, self.registry.pointers(self.policy)
        versions, active = registry.versions(self.policy), registry.active(self.policy)
        lines = [
            line for line in registry.audit() if line.get("policy") == self.policy and line.get("event") != "prune"
        ]
        return {
            "policy": self.policy,
            "active": active.label if active else "",
            "pinned": pointers.pinned.label if pointers.pinned else "",
            "held": vars(pointers.held) if pointers.held else None,
            "newest": versions[-1].label if versions else "",
            "kept": len(versions),
            "audit": lines[-_LINES:],
        }

    def restorable(self) -> int | None:
        return next((step for _, step in self.registry.restorable(self.policy)), None)

    def pin(self, version: int | str, by: str) -> State:
        self.registry.pin(self.policy, version, by=by)
        return self.state()

    def unpin(self, by: str) -> State:
        self.registry.unpin(self.policy, by=by)
        return self.state()

    def rollback(self, version: int | str | None, by: str, note: str) -> State:
        self.registry.rollback(self.policy, version, by=by, note=note)
        return self.state()

    def resume(self, restore: bool, by: str) -> State:
        held = self.registry.held(self.policy)
        self.registry.resume(self.policy, restore=restore, by=by)
        if held is not None and held.by == BY_SERVER and self.run is not None:
            self._resume_server(self.run, by)
        return self.state()

    def close(self) -> None:
        """Nothing is open."""

    def _resume_server(self, run: Path, by: str) -> None:
        """The hold came from the server that the run pushes to: lift it there too, where one may."""
        serve = OmegaConf.select(saved_config(run), "client")
        try:
            server = OnServer(serve.address, serve.get("credentials"), self.policy, 5.0)
            try:
                server.resume(False, by)
            finally:
                server.close()
        except EmbodiedError as error:
            fix = f"`embodied weights resume address={serve.address}` with credentials that may"
            print(f"the server at {serve.address} holds on: {error.line()}; {fix}", file=sys.stderr)


class OnServer:
    """One policy of a policy server, and the registry behind it. A move returns once the server serves what is active.

    Args:
        address, credentials: As for `Requester`.
        policy: Its name; may be empty where the server has one.
        timeout_s: Seconds to wait for each answer.
        switch_s: Seconds a server has for a switch before a move is an error.

    Raises:
        UserError: The address is malformed, or beyond this machine without credentials.
        InfrastructureError: There is no such socket on this machine.
    """

    verb = "served"

    def __init__(
        self, address: str, credentials: str | None, policy: str, timeout_s: float, switch_s: float = _SWITCH_S
    ) -> None:
        self._switch_s = switch_s
        self._asker = Requester(address, "policy server", timeout_s=timeout_s, credentials=credentials)
        self._policy = policy
        self.words = (
            f"address={address}"
            + (f" credentials={credentials}" if credentials else "")
            + (f" policy={policy}" if policy else "")
        )
        path = addresses.resolve(address).removeprefix("ipc://")
        if path != address and not path.startswith("@") and not Path(path).exists():
            self._asker.close()
            raise InfrastructureError(
                "no server is here: there is no such socket", address, "start one, or give the address it prints"
            )

    def entries(self) -> list[Entry]:
        raise ConfigError("a server lists no versions", "address", "give run=NAME or weights=FOLDER on its machine")

    def state(self) -> State:
        told = self._asker.request("status", policy=self._policy).body
        if not {"policy", "number", "hash"} <= told.keys():
            raise MessageError("a status without policy, number and hash", self.words, "run the same version")
        served = f"{told['number']}-{told['hash']}" if told["hash"] else "its initial weights"
        return {"active": "", "pinned": "", "held": None, "trouble": "", **told, "served": served}

    def restorable(self) -> int | None:
        return None

    def pin(self, version: int | str, by: str) -> State:
        return self._set_active("pinned", version, by)

    def unpin(self, by: str) -> State:
        return self._set_active("pinned", None, by)

    def rollback(self, version: int | str | None, by: str, note: str) -> State:
        return self._set_active("serving", version, by, note)

    def resume(self, restore: bool, by: str) -> State:
        return self._set_active("held", None, by)

    def close(self) -> None:
        self._asker.close()

    def _set_active(self, pointer: str, version: int | str | None, by: str, note: str = "") -> State:
        body = {"pointer": pointer, "version": version, "note": note, "by": by}
        before = self.state()["trouble"]
        self._asker.request("set_active", policy=self._policy, body=body)
        end = time.monotonic() + self._switch_s
        while True:
            state = self.state()
            if state["active"] in ("", state["served"]):
                return state
            trouble = state["trouble"]
            if time.monotonic() >= end or (trouble and trouble != before):
                break
            time.sleep(_LOOK_S)
        raise InfrastructureError(
            f"pointers moved, but the server still serves {state['served']}: {trouble or 'it is still loading'}",
            self.words,
            f"`embodied weights status {self.words}` says how it goes on",
        )
