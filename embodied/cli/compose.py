"""Configurations composed from `configs/` and the words on the command line, with one-line errors."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from embodied.build import defaults
from embodied.errors import ConfigError, nearest
from embodied.search_path import CONFIGS, config_files, config_folders


def groups() -> dict[str, list[str]]:
    """Config group to its options in all config folders."""
    return {
        group: list(config_files(group)) for group in sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())
    }


def compose_config(name: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration `configs/<name>.yaml` under Hydra overrides such as `task=reach seed=3`.

    Raises:
        ConfigError: An override cannot be read, or names an unknown group option or key.
    """
    for word in overrides:
        if not re.match(r"^[+~]*[\w@./-]+(=|$)", word) or ("=" not in word and not word.startswith("~")):
            raise ConfigError(f"{word!r} is not an override", "command line", "write key=value, such as task=reach")
    # The defaults, which Hydra takes from files only.
    overrides = [word for word in overrides if word not in ("experiment=null", "robot=null")]
    _check_grammar(overrides)
    known = groups()
    overrides = [part for word in overrides for part in _own_parts(word, known)]
    file = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"), resolve=False)
    assert isinstance(file, dict)
    own = {str(group) for entry in file.get("defaults", ()) if isinstance(entry, dict) for group in entry}
    words = [_Override.of(word, own | set(file)) for word in overrides]
    chosen = [word for word in words if word.key in own and word.sign != "~"]
    for _, key, option in chosen:
        if option not in known[key]:
            raise ConfigError(f"unknown {key} {option!r}", f"{key}={option}", nearest(option, known[key]))
    folders = ",".join(f"'file://{folder}'" for folder in config_folders()[1:])
    search = [f"hydra.searchpath=[{folders}]"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            removed = [f"~{word.key}" for word in words if word.sign == "~" and word.key in own]
            plain = compose(name, overrides=[*search, *removed, *(f"{word.key}={word.value}" for word in chosen)])
            paths = own | _paths(OmegaConf.to_container(plain, resolve=False))
            return compose(name, overrides=search + [_checked(word, paths) for word in words])
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, ConfigKeyError) and (key := str(cause.full_key)):
                raise _unknown(key, paths) from None
            text = str(cause).strip().splitlines()[0]
            raise ConfigError(text, "command line", f"see `embodied {name} --help`") from None


class _Override(NamedTuple):
    """A word of the command line: `key=value`, with or without `+`, or `~key`."""

    sign: str
    key: str
    value: str

    @classmethod
    def of(cls, word: str, keys: Collection[object]) -> Self:
        """Parse a word; `render` and `renderer` are one key, under the name that `keys` has."""
        key, _, value = word.lstrip("+~").partition("=")
        other = {"render": "renderer", "renderer": "render"}.get(key, key)
        return cls(word[0], key if key in keys else other, value)


def _own_parts(word: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Overrides for a word that gives a task by the import path of its module, or a robot by that or the path of its
    description; other words stay as they are."""
    key, _, value = word.partition("=")
    if key == "robot" and "." in value and value not in known["robot"]:
        return [f"++task.robot={value}"]
    if key not in ("task", "task.name") or "." not in value or value in known["task"]:
        return [word]
    return ["~task", f"++task.name={value}"]


def _check_grammar(overrides: Sequence[str]) -> None:
    for word in overrides:
        key = word.partition("=")[0].lstrip("+")
        try:
            several = OverridesParser.create().parse_override(word).is_sweep_override()
        except (HydraException, OmegaConfBaseException, ValueError):
            fix = f"quote what is no plain word: '{key}=\"a value\"'"
            raise ConfigError(f"{word!r} cannot be read", "command line", fix) from None
        if several:
            fix = f"write a list as {key}=[a,b], or run the command once per value"
            raise ConfigError(f"{key} has several values", word, fix)
        if word.startswith("~") and "=" in word:
            raise ConfigError(f"{key} is removed and has a value", word, f"write {key}")


# Their components check their own keys, so that a parameter needs no mention in a file to be overridden.
OPEN_GROUPS = ("task", "env", "policy", "algo", "reward", "warm_start.clone")


def _checked(word: _Override, paths: set[str]) -> str:
    """The word as Hydra takes it; raises `ConfigError` if its key is unknown."""
    if word.sign == "~" and word.key in paths:
        return f"~{word.key}"
    if word.key in paths:
        return f"{word.key}={word.value}"
    if word.sign != "~" and any(word.key.startswith(f"{group}.") for group in OPEN_GROUPS if group in paths):
        return f"++{word.key}={word.value}"
    if word.key == "hydra.searchpath":
        raise ConfigError(f"{word.key} is not read", "command line", "give each folder as --config-dir FOLDER")
    raise _unknown(word.key, paths)


def _unknown(key: str, paths: set[str]) -> ConfigError:
    """Error that offers the nearest keys, or all beside the unknown one."""
    fix = nearest(key, paths)
    if not fix.startswith("did"):
        within = key.rpartition(".")[0]
        while within and within not in paths:
            within = within.rpartition(".")[0]
        fix = nearest(key, {path for path in paths if path.rpartition(".")[0] == within})
    return ConfigError(f"unknown key {key!r}", "command line", fix)


def _paths(node: object, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return set()
    found: set[str] = set()
    for key, value in node.items():
        found |= {f"{prefix}{key}"} | _paths(value, f"{prefix}{key}.")
    return found


def check_groups(arguments: Sequence[str], config: DictConfig) -> None:
    """Raise `ConfigError` if groups are given that the run, which has its own, would leave unread."""
    for word in arguments:
        key = word.partition("=")[0].lstrip("+")
        if config.run is not None and key.partition(".")[0] in ("task", "robot", "env", "policy"):
            raise ConfigError(f"{key} is for run=null: a run has its own", word, "add run=null, or leave it out")


_SPLITS = {"train": "compare.split", "eval": "splits"}


def show_help(arguments: Sequence[str], text: str, name: str) -> bool:
    """Print the help of a command whose keys are `configs/<name>.yaml` if it is asked for; says whether it was. Other
    words choose what it tells of, such as `experiment=vla_reach`."""
    if not {"-h", "--help"} & set(arguments):
        return False
    print(text)
    config = compose_config(name, [word for word in arguments if "=" in word])
    known = groups()
    grouped = [str(key) for key in config if str(key) in known]
    extra = ["robot", *(["experiment", "randomise"] if name == "train" else [])]
    if grouped:
        print("Groups, and what can be chosen for each:")
        for group in sorted([*grouped, *extra]):
            print(f"  {group:<11} {', '.join(known[group])}")
        print()
    if name in _SPLITS:
        print(f"Splits, for {_SPLITS[name]}: {', '.join(known['split'])}\n")
    lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
    print("Keys and their defaults:")
    print("\n".join(f"  {line}" for line in lines if re.match(r"(  )?\w", line) and line != "defaults:"))
    if grouped:
        print("\nGroups, as they are with these words:")
        chosen = OmegaConf.masked_copy(config, grouped)
        print("\n".join(f"  {line}" for line in OmegaConf.to_yaml(chosen).splitlines()))
    for group in OPEN_GROUPS:
        _show_more(group, OmegaConf.select(config, group))
    return True


def _show_more(group: str, config: DictConfig | None) -> None:
    """The keys of a group that no file names."""
    if not isinstance(config, DictConfig) or not config.get("_target_"):
        return
    given = {str(key): value for key, value in config.items()}
    try:
        more = defaults(given, group)
    except ModuleNotFoundError as error:
        print(f"\nMore keys of {group}: install {error.name} to see them")
        return
    if more:
        print(f"\nMore keys of {group}, and their defaults; {given['_target_'].rpartition('.')[0]} explains them:")
        print("\n".join(f"  {group}.{key}: {_written(value)}" for key, value in more.items()))


def _written(value: object) -> str:
    return json.dumps(value, default=str).strip('"')
