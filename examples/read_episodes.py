"""Read stored episodes with h5py and pandas alone: nothing of this project is imported.

`python examples/read_episodes.py runs/latest`; docs/episode-format.md describes the layout.
"""

import json
import sys
from pathlib import Path

import h5py
import pandas as pd

rows, steps = [], None
for path in sorted(Path(sys.argv[1], "episodes").glob("*.h5")):
    with h5py.File(path) as file:
        for name, episode in file["episodes"].items():
            for agent in json.loads(episode.attrs["spec"])["agents"]:
                track = episode[agent]
                table = track["steps"][()]
                rows.append(
                    {
                        "episode": name,
                        "mode": episode.attrs["mode"],
                        "agent": agent,
                        "policy": track.attrs["policy"],
                        "outcome": track.attrs["outcome"],
                        "steps": len(table),
                        "return": float(table["reward"].sum()),
                        "version": int(track["decisions"]["version"].max()),
                    }
                )
                plain = [field for field in table.dtype.names if table.dtype[field].shape == ()]
                steps = pd.DataFrame({field: table[field] for field in plain})

episodes = pd.DataFrame(rows)
print(episodes.groupby(["mode", "agent", "outcome"])[["steps", "return"]].agg(["count", "mean"]))
print(steps.head())
