"""Parts of a run, made from its settings."""

from pathlib import Path

import pytest

from embodied.cli.compose import compose_config
from embodied.monitor.progress import Progress
from embodied.runs.settings import Settings, typed
from embodied.train.parts import make_parts

CAMERAS = ["task=reach", "env.cameras=[front,wrist]", "env.images=[rgb,depth]", "env.pixels=16", "render=ray"]
DEPTH = {"front_depth", "wrist_depth"}


@pytest.mark.parametrize(
    ("words", "omitted"),
    [
        ((), {"front_rgb", "wrist_rgb", *DEPTH}),
        (("episodes.pictures=all",), set()),
        (("policy=film", "algo=bc", "warm_start.demonstrations=1"), DEPTH),
    ],
)
def test_episodes_keep_the_pictures_that_the_policy_reads(
    tmp_path: Path, words: tuple[str, ...], omitted: set[str]
) -> None:
    config = compose_config("train", [*CAMERAS, "rollout.num_envs=2", *words])
    parts = make_parts(typed(Settings, config), tmp_path, 0, Progress("test"))
    assert set(parts.omitted_streams) == omitted
    parts.close()
