"""A recorder without terms: episodes are recorded by `embodied.buffer`."""

from typing import Any


class RecorderManager:
    """Takes every call of Isaac Lab's recorder and records nothing."""

    active_terms: tuple[str, ...] = ()

    def record_pre_step(self) -> None: ...

    def record_post_physics_decimation_step(self) -> None: ...

    def record_post_step(self) -> None: ...

    def record_pre_reset(self, env_ids: Any, force_export_or_skip: bool | None = None) -> None: ...

    def record_post_reset(self, env_ids: Any) -> None: ...

    def reset(self, env_ids: Any = None) -> dict[str, Any]:
        return {}
