"""`embodied play`."""

from collections.abc import Sequence

from embodied.cli.compose import compose_config, show_help
from embodied.data import Outcome

HELP = """\
embodied play [key=value ...]

Plays a task's scripted expert and writes a video of it.

  embodied play task=lift_cube                            lift_cube.mp4
  embodied play task=reach seed=7 episodes=6 out=six.mp4  six episodes side by side
  embodied play task=lift_cube camera=wrist               what the robot's own camera sees
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "play"):
        return 0
    config = compose_config("play", arguments)
    from embodied.evaluate.gallery import PlaySettings, play_video
    from embodied.runs.settings import typed

    label = next((word.removeprefix("task=") for word in arguments if word.startswith("task=")), config.task.name)
    shown = play_video(typed(PlaySettings, config), label)
    played = shown.recording.played
    for seed, outcome, steps, words in zip(
        played.seeds, played.outcomes, played.lengths, shown.recording.instructions, strict=True
    ):
        print(f"seed {seed}: {words}: {Outcome(int(outcome)).name.lower()} in {steps} steps")
    video = shown.video
    print(f"{shown.path}: {video.frames} frames of {video.width}x{video.height}, drawn by {video.renderer}")
    if video.hint:
        print(video.hint)
    return 0
