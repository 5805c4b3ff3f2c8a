"""Components from their configuration: what does not fit is refused by name before it is made."""

import re
from typing import Any

import pytest

from embodied.build import build, require_parts
from embodied.errors import ConfigError


def component(name: str, *, size: int = 1, scale: float = 1.0, seed: int = 0, **more: Any) -> tuple[Any, ...]:
    return name, size, scale, seed, more


HERE = f"{__name__}.component"


def test_options_reach_the_target() -> None:
    assert build({"_target_": HERE, "size": 2, "scale": 3, "free": "x"}, "env", "a", seed=7) == (
        "a", 2, 3.0, 7, {"free": "x"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "x"}, "size cannot be 'x' (env.size): give a whole number"),
        ({"size": None}, "size cannot be null"),
        ({"scale": "x"}, "scale cannot be 'x' (env.scale): give a number"),
        ({"seed": 3}, "there is no setting seed (env.seed)"),
        ({"name": "b"}, "there is no setting name (env.name)"),
        ({"_target_": "builtins.dict"}, "builtins.dict is not made for env (env._target_)"),
        ({"_target_": "os.sep"}, "os.sep is not made for env"),
        ({"_target_": None}, "cannot import 'None' (env._target_)"),
        ({"_target_": f"{__name__}.nothing"}, "cannot import"),
    ],
)
def test_a_mistake_names_its_key(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said).replace(r"'None'\ ", r"'None'.* ")):
        build({"_target_": HERE, **options}, "env", "a", seed=7)


def test_what_was_made_has_what_it_needs() -> None:
    require_parts("a", {}, "env", "join")
    with pytest.raises(ConfigError, match=r"x makes no env: it has no step \(env._target_\)"):
        require_parts("a", {"_target_": "x"}, "env", "join", "step")
