"""How every benchmark ends: one line of JSON."""

import json
from collections.abc import Mapping


def emit(values: Mapping[str, float], targets: Mapping[str, float], units: Mapping[str, str] | None = None) -> None:
    """Print results; one without a target (at least that much) has none. Units are `ratio` where not named."""
    rows = [
        {
            "name": name,
            "value": round(float(value), 4),
            "unit": (units or {}).get(name, "ratio"),
            "sense": ">=",
            "target": targets.get(name),
        }
        for name, value in values.items()
    ]
    print(json.dumps({"results": rows}))
