"""Rules of which episodes are stored, and of which are evicted first."""

from collections.abc import Iterable

from embodied.data import Outcome
from embodied.episode import Episode
from embodied.errors import ConfigError, nearest

RULES = ("evaluation", "demonstration", "failure", "success", "all")
DEFAULT = ("evaluation", "demonstration", "failure")
TRAINING = "train"
EVICTION = (TRAINING, "evaluation", "demonstration")
"""Modes in the order of eviction. An episode never evicts one of a later mode."""


def check_rules(rules: Iterable[str]) -> frozenset[str]:
    """Rules as a set; an episode is stored if any of them holds.

    `evaluation` and `demonstration` are modes; `success` is that outcome and `failure` every other one, whatever the
    mode; `all` stores everything.

    Raises:
        ConfigError: A rule is unknown.
    """
    chosen = frozenset(rules)
    for rule in sorted(chosen - set(RULES)):
        raise ConfigError(f"unknown rule {rule!r}", "episodes.keep", nearest(rule, RULES))
    return chosen


def is_retained(episode: Episode, rules: frozenset[str]) -> bool:
    """Whether the rules store an episode."""
    outcome = "success" if episode.outcome == Outcome.SUCCESS else "failure"
    return not rules.isdisjoint(("all", episode.mode, outcome))


def eviction_rank(mode: str) -> int:
    """Place of a mode in `EVICTION`; the last one for any other mode."""
    return EVICTION.index(mode) if mode in EVICTION else len(EVICTION) - 1
