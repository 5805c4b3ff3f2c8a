"""`embodied train`."""

from collections.abc import Sequence

from embodied.cli.compose import compose_config, show_help

HELP = """\
embodied train [key=value ...]

Trains a policy and leaves a run folder: config.yaml, metrics.csv, tensorboard/, summary.json, success.png,
evaluation.mp4, checkpoints/, episodes/, weights/. runs/latest is the last run.

  embodied train                          lift_cube with PPO, from scratch
  embodied train experiment=lift_fast     five demonstrations, cloning, then PPO on the sparse reward
  embodied train experiment=vla_reach     from a picture and words: 60 demonstrations, cloning, then PPO
  embodied train algo=bc policy=film task=stack env.cameras=[front,wrist] warm_start.episodes=RUN
  embodied train task=reach algo=ppo seed=3 name=a
  embodied train resume=latest            goes on where a run stopped, killed or not; other keys change its settings
  embodied train algo=ppo algo.lr=1e-3 rollout.num_envs=128

Any key below can be given as key=value, a key inside a group as group.key=value.
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "train"):
        return 0
    config = compose_config("train", list(arguments))
    from embodied.runtime.train import train

    train(config, list(arguments))
    return 0
