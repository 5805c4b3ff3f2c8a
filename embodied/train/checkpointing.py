"""Checkpoints of a run: the state of every stage, and the weights last published."""

from collections.abc import Mapping
from typing import Any

from embodied.runs import checkpoint
from embodied.runs.checkpoint import Loaded
from embodied.train.mailbox import Stage
from embodied.train.parts import Parts


def save(parts: Parts, stages: Mapping[str, Stage], step: int, state: Mapping[str, Any]) -> set[int]:
    """Write a checkpoint of stages at rest, and seal the episodes stored so far.

    Args:
        parts: Of the run.
        stages: Name to stage.
        step: Updates so far.
        state: Of the run itself, plain JSON.

    Returns:
        Steps of all checkpoints.
    """
    parts.store.seal()
    folder = parts.folder / "checkpoints"
    checkpoint.save(
        folder,
        step,
        policies={parts.spec.name: checkpoint.SavedPolicy(parts.trained.tensors(), parts.spec.to_dict())},
        learner_state={name: stage.state() for name, stage in stages.items()},
        state=state,
        keep=parts.settings.checkpoint.keep,
    )
    return checkpoint.steps(folder)


def restore(stages: Mapping[str, Stage], saved: Loaded) -> None:
    """Load the state of every stage.

    Raises:
        CorruptFile: As `Trained.load`.
        ConfigError: The checkpoint is of another number of environments.
    """
    for name, stage in stages.items():
        stage.load(saved.learner[name])
