"""Components from their configuration: what does not fit is refused by name before it is made."""

import re
from typing import Any

import pytest

from embodied.errors import ConfigError
from embodied.runtime.build import build, require_parts


def component(name: str, *, size: int = 1, scale: float = 1.0, seed: int = 0, **more: Any) -> tuple[Any, ...]:
    return name, size, scale, seed, more


HERE = f"{__name__}.component"


def test_options_reach_the_target() -> None:
    assert build({"target": HERE, "size": 2, "scale": 3, "free": "x"}, "body", "a", seed=7) == (
        "a", 2, 3.0, 7, {"free": "x"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "x"}, "size cannot be 'x' (body.size): give a whole number"),
        ({"size": None}, "size cannot be None"),
        ({"scale": "x"}, "scale cannot be 'x' (body.scale): give a number"),
        ({"seed": 3}, "takes no seed (body.seed)"),
        ({"name": "b"}, "takes no name (body.name)"),
        ({"target": "builtins.dict"}, "builtins.dict is not made for body (body.target)"),
        ({"target": "os.sep"}, "os.sep is not made for body"),
        ({"target": None}, "cannot import 'None' (body.target)"),
        ({"target": f"{__name__}.nothing"}, "cannot import"),
    ],
)
def test_a_mistake_names_its_key(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said).replace(r"'None'\ ", r"'None'.* ")):
        build({"target": HERE, **options}, "body", "a", seed=7)


def test_what_was_made_has_what_it_needs() -> None:
    require_parts("a", {}, "body", "join")
    with pytest.raises(ConfigError, match=r"x makes no body: it has no step \(body.target\)"):
        require_parts("a", {"target": "x"}, "body", "join", "step")
