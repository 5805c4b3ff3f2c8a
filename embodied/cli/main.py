"""`embodied`: the front door. Every command ends in one line on a mistake, never a traceback."""

import argparse
import atexit
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from embodied.errors import ConfigError, EmbodiedError, nearest
from embodied.search_path import add_folder

COMMANDS = {
    "train": "train a policy: embodied train task=reach algo=ppo seed=3",
    "eval": "measure a run's policy on seeds: embodied eval run=latest episodes=200 seed=1000",
    "serve": "answer clients with a run's policy: embodied serve run=latest address=ipc://policy",
    "credentials": "a server's credentials, and who may call it: embodied credentials create FOLDER",
    "weights": "list versions; pin one, roll back, go on: embodied weights rollback run=latest",
    "tasks": "list robot, cameras, instruction and measured expert success of every task",
    "play": "write a video of a task's scripted expert: embodied play task=reach seed=7",
    "episodes": "list, show, trace or replay stored episodes: embodied episodes ls run=latest",
    "sim-worker": "another project's environments: embodied sim-worker --env gymnasium:FetchPush-v4 --connect ADDRESS",
    "robot": "bring in a robot of your own: embodied robot import ur5e.xml gripper=2f85.xml",
    "doctor": "check this machine, and say what mends it",
}


INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="embodied",
        description="Train, evaluate and serve robot policies.",
        epilog="`embodied COMMAND --help` explains a command. First of all try `embodied doctor`.",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    parser.add_argument(
        "--config-dir", metavar="FOLDER", help="a folder of your own tasks, splits and experiments, as configs/ is"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    rest = _config_folders([word for word in arguments if word != "--debug"])
    if rest and not rest[0].startswith("-") and rest[0] not in COMMANDS:
        raise ConfigError(f"unknown command {rest[0]!r}", "command line", nearest(rest[0], COMMANDS))
    if not rest or rest[0].startswith("-"):
        parser.parse_args(rest or ["--help"])
        return 0
    command: Callable[[Sequence[str]], int] = importlib.import_module(f"embodied.cli.{rest[0].replace('-', '_')}").main
    return command(rest[1:])


def _config_folders(arguments: list[str]) -> list[str]:
    """The arguments without `--config-dir`, whose folders join the search path."""
    rest, words = [], iter(arguments)
    for word in words:
        option, _, folder = word.partition("=")
        if option == "--config-dir":
            add_folder(folder or next(words, ""))
        else:
            rest.append(word)
    return rest


def _missing(error: ModuleNotFoundError) -> ConfigError:
    extras = {"torch": "train", "safetensors": "serve", "mujoco": "sim", "numba": "sim", "gymnasium": "sim",
              "imageio": "sim", "tensorboard": "train", "matplotlib": "train", "ray": "ray",
              "transformers": "vla", "peft": "vla"}  # fmt: skip
    package = (error.name or "").split(".")[0]
    if "serve" in sys.argv[1:2]:  # of a server, torch alone is missing
        extras["torch"] = "serve"
    extra = extras.get(package, "all")
    return ConfigError(
        f"the package {package} is not installed", "this environment", f"pip install -e '.[{extra}]' in the clone"
    )


_MEMORY = re.compile(r"allocate memory|out of memory")  # how torch says it


def _line(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, EmbodiedError):
        return error.line()
    if isinstance(error, KeyboardInterrupt):
        return " ".join(["interrupted;" if str(error) else "interrupted", *str(error).split()]).strip()
    if isinstance(error, ModuleNotFoundError) and not _ours(error):
        return _missing(error).line()
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _MEMORY.search(str(error))):
        return "no memory left: choose smaller numbers, such as rollout.num_envs, or a larger machine"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno)} ({error.filename or 'output'}): check the file, its folder and its disk"
    at = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(str(error).split())[:300]
    return (
        f"internal error: {type(error).__name__}: {what} ({at.filename}:{at.lineno}): "
        "run again with --debug and report what it shows"
    )


def _ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").split(".")[0] in ("embodied", "simulators", "robots", "policies")


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt


def entry() -> None:
    """The console command."""
    arguments = sys.argv[1:]
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))  # tasks and robots of the user's own, named by import paths
    # Torch's threads, which sleep while they wait: spinning ones stop each other where cores are short.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminate)
    try:
        status = run(arguments)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            _mute(sys.stdout)  # the command has done its work
    except BrokenPipeError:
        status = 141  # the reader of a pipe (head, less) left
        _mute(sys.stdout)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            raise
        with suppress(OSError):  # the terminal may be gone
            print(f"embodied: {_line(error)}", file=sys.stderr)
        status = error.exit_status if isinstance(error, EmbodiedError) else 3
        if isinstance(error, ModuleNotFoundError):
            status = 2
        if isinstance(error, KeyboardInterrupt):
            status = INTERRUPTED
        _flush(sys.stdout)
    _flush(sys.stderr)
    end(status)


def end(status: int) -> None:
    """End the process. An interrupted one ends at once, since Python takes seconds to free what torch has loaded."""
    if status == INTERRUPTED:
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _mute(stream: TextIO | None) -> None:
    """Drop what could not be written, or Python would complain again while closing the stream."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _flush(stream: TextIO | None) -> None:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        _mute(stream)


if __name__ == "__main__":
    entry()
