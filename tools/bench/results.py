"""The last line of every benchmark: its results as JSON."""

import json
from collections.abc import Collection, Mapping


def emit(
    values: Mapping[str, float],
    targets: Mapping[str, float],
    units: Mapping[str, str] | None = None,
    at_most: Collection[str] = (),
) -> None:
    """Print results.

    Args:
        values: Name to result.
        targets: Name to what the result should be at least; one without has none.
        units: Name to unit, `ratio` where not named.
        at_most: Names of results that should be at most their target.
    """
    rows = [
        {
            "name": name,
            "value": round(float(value), 4),
            "unit": (units or {}).get(name, "ratio"),
            "sense": "<=" if name in at_most else ">=",
            "target": targets.get(name),
        }
        for name, value in values.items()
    ]
    print(json.dumps({"results": rows}))
