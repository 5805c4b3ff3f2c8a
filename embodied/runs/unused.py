"""Words of the command line that change nothing in a run, so that they are said."""

from collections.abc import Iterator, Sequence

from embodied.runs.settings import Settings


def unused(settings: Settings, words: Sequence[str], only_clones: bool) -> Iterator[str]:
    """A line for each word that has no effect.

    Args:
        settings: Of the run.
        words: Of the command line, such as `rollout.steps=8`.
        only_clones: Whether the algorithm learns from demonstrations alone.
    """
    begin = settings.warm_start
    reasons = [
        ("warm_start.clone", only_clones, "the algorithm itself clones: write algo.KEY=VALUE"),
        ("warm_start.clone", not begin.clones, "nothing is cloned: give warm_start.demonstrations"),
        ("warm_start.memory_gb", begin.episodes is None, "no stored episodes are read: give warm_start.episodes"),
        ("rollout", only_clones, "the algorithm learns from demonstrations alone"),
        ("budget", only_clones, "the algorithm learns from demonstrations alone: algo.steps and algo.seconds limit it"),
        ("evaluate.every", only_clones, "the algorithm makes one update"),
        ("evaluate.patience", only_clones, "the algorithm makes one update"),
        ("compare.wrong", settings.compare.split is None, "nothing is compared: give compare.split"),
        ("env.pixels", not settings.env.get("cameras", True), "no camera is sensed: give env.cameras"),
        ("env.images", not settings.env.get("cameras", True), "no camera is sensed: give env.cameras"),
        ("client.timeout_s", settings.client.address == "inline", "the policy answers in this process"),
        ("client.credentials", settings.client.address == "inline", "the policy answers in this process"),
    ]
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        for name, is_unused, reason in reasons:
            if is_unused and (key == name or key.startswith(f"{name}.")):
                yield f"{word} has no effect: {reason}"
                break
