"""`embodied sim-worker`: another project's environments, in its own Python environment, for a env elsewhere."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import ConfigError
from embodied.supervisor import end_with_parent
from simulators.worker.process import run_worker

DESCRIPTION = """\
Runs environments of another project for the env of a run (`env=worker`), which may be in another process, Python
environment or machine. Needs only the base install here. Serves whoever listens at the address, one after the other.

  embodied sim-worker --env gymnasium:FetchPush-v4 --connect ipc://worker
  embodied sim-worker --env gymnasium:my_envs:Push-v0 --connect tcp://10.0.0.5:5557 --credentials site
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(message, "embodied sim-worker", "see --help")


def parser() -> argparse.ArgumentParser:
    parser = _Parser("embodied sim-worker", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--env", required=True, help="<suite>:<id>, such as gymnasium:FetchPush-v4")
    parser.add_argument("--connect", required=True, metavar="ADDRESS", help="where the env listens")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="for the environment; may be repeated"
    )
    parser.add_argument("--pixels", type=int, default=0, help="add a square `rgb` stream with this edge")
    parser.add_argument("--credentials", type=Path, help="folder of CURVE credentials, needed beyond this machine")
    parser.add_argument("--idle", type=float, default=600.0, metavar="S", help="end after S seconds without a env")
    return parser


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words, values in YAML.

    Raises:
        ConfigError: A word is no `key=value`, or a value cannot be read.
    """
    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        try:
            if not (equals and key.isidentifier()):
                raise ValueError
            options[key] = yaml.safe_load(value)
        except (ValueError, yaml.YAMLError):
            raise ConfigError(f"--option {word!r} cannot be read", "embodied sim-worker", "write key=value") from None
    return options


def main(arguments: Sequence[str]) -> int:
    end_with_parent()
    given = parser().parse_args(list(arguments))
    logging.basicConfig(format="sim-worker: %(message)s", level=logging.WARNING)
    run_worker(given.env, given.connect, parse_options(given.option), given.pixels, given.credentials, given.idle)
    return 0
