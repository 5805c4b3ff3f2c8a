"""Engines: computers of a policy's decisions where it serves."""

from collections.abc import Mapping
from typing import Any

from embodied.errors import ConfigError


def with_engine(policy: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a policy that decides with an engine of `configs/engine`, and is the same otherwise.

    Args:
        policy: `target`, and what it takes.
        engine: `target`, which is given what `policy` takes and, as `engine`, the rest of these keys; and `replaces`,
            the target of the policies that it can stand for. Without a target the policy stays as it is.

    Raises:
        ConfigError: The engine is none for this policy.
    """
    if not engine.get("_target_"):
        return dict(policy)
    wanted, given = engine.get("replaces"), policy.get("_target_")
    if wanted != given:
        raise ConfigError(f"this engine is for policies of {wanted}, this one is of {given}", "engine", "engine=torch")
    rest = {key: value for key, value in engine.items() if key not in ("_target_", "replaces")}
    return {**policy, "_target_": engine["_target_"], "engine": rest}
