"""`embodied`: the front door. Every command ends in one line on a mistake, never a traceback."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from embodied.errors import ConfigError, EmbodiedError, nearest

COMMANDS = {
    "train": "train a policy: embodied train task=reach algo=ppo seed=3",
    "eval": "measure a run's policy on seeds: embodied eval run=latest episodes=200 seed=1000",
    "serve": "answer clients with a run's policy: embodied serve run=latest address=ipc:///tmp/policy",
    "episodes": "list, show or trace stored episodes: embodied episodes ls run=latest",
    "doctor": "check this machine, and say what mends it",
}


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="embodied",
        description="Train, evaluate and serve robot policies.",
        epilog="`embodied COMMAND --help` explains a command. First of all try `embodied doctor`.",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    rest = [word for word in arguments if word != "--debug"]
    if rest and not rest[0].startswith("-") and rest[0] not in COMMANDS:
        raise ConfigError(f"unknown command {rest[0]!r}", "command line", nearest(rest[0], COMMANDS))
    if not rest or rest[0].startswith("-"):
        parser.parse_args(rest or ["--help"])
        return 0
    command: Callable[[Sequence[str]], int] = importlib.import_module(f"embodied.cli.{rest[0]}").main
    return command(rest[1:])


def _missing(error: ModuleNotFoundError) -> ConfigError:
    extras = {"torch": "train", "safetensors": "serve", "mujoco": "sim", "numba": "sim", "gymnasium": "sim",
              "imageio": "sim", "tensorboard": "train", "matplotlib": "train", "ray": "ray"}  # fmt: skip
    package = (error.name or "").split(".")[0]
    extra = extras.get(package, "all")
    return ConfigError(
        f"the package {package} is not installed", "this environment", f"pip install 'embodied-rl[{extra}]'"
    )


def entry() -> None:
    """The console command."""
    arguments = sys.argv[1:]
    try:
        status = run(arguments)
        sys.stdout.flush()
    except EmbodiedError as error:
        if "--debug" in arguments:
            raise
        print(f"embodied: {error.line()}", file=sys.stderr)
        status = error.exit_status
    except ModuleNotFoundError as error:
        if "--debug" in arguments or (error.name or "").startswith(("embodied", "simulators", "robots", "policies")):
            raise
        print(f"embodied: {_missing(error).line()}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("embodied: interrupted; `embodied train resume=latest` goes on from the last checkpoint", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) left; Python would complain again while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


if __name__ == "__main__":
    entry()
