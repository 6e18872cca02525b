"""What successive halving saves: the same settings, halved and all to the end, and how soon a trial's worker trains.

    python benchmarks/search.py [--trials 9] [--rows 320]

The settings are drawn at random by one seed, so that both searches try the same ones; the packaged model and data.
Prints a table: rows trained, seconds in which anything ran, the winner, and the seconds from a worker's start to its
first step, forked (`search.warm`) and started by itself.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from skytune.common.text import duration
from skytune.config import RunConfig, from_dict
from skytune.config.folders import home
from skytune.job import read_json
from skytune.search import Search, findings, run_search

SPACE = {
    "optimizer.lr": "loguniform(1e-5,1e-3)",
    "batch.global_size": [8, 16, 32],
    "model.dropout": "uniform(0,0.3)",
}


def config(rows: int, **search: Any) -> RunConfig:
    """Return a search of the laptop's preset, with fewer rows."""
    return from_dict(
        RunConfig,
        {
            "pipeline": "search",
            "data": {
                "subset": "rotten_tomatoes",
                "labels": ["negative", "positive"],
                "max_rows": rows,
                "validation_fraction": 0.04,
                "test_fraction": 0.02,
                "max_length": 64,
            },
            "schedule": {"warmup_ratio": 0.1},
            "checkpoint": {"select": "last"},
            "tracker": {"names": []},
            "search": {"space": SPACE, "sampler": "random", "confirm": 0, **search},
        },
    )


def starts(search: Search) -> list[float]:
    """Return the seconds from each worker's start to its first step, in the order of the trials."""
    rows = [search.record.row(cell) for trial in search.record.trials for cell in trial.cells]
    phases = [read_json(home() / row["job"] / "outputs" / "result.json")["phases"] for row in rows if row.get("job")]
    return [phase["start_s"] + phase["load_s"] for phase in phases]


def line(name: str, search: Search) -> str:
    """Return a line of the table."""
    found = findings(search)
    best = found["winner"]
    begun = ", ".join(f"{seconds:.1f}" for seconds in starts(search)[1:4])
    return (
        f"| {name} | {len(found['trials'])} | {found['samples']:,} | {duration(found['seconds'])} | "
        f"trial {best['number']} | {best['score']:.4f} | {begun} s |"
    )


def main() -> None:
    """Run both searches, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--rows", type=int, default=320)
    asked = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, more in (
            ("halving=3", {"halving": 3}),
            ("all to the end", {}),
            ("all to the end, warm=false", {"warm": False, "trials": 2}),
        ):
            os.environ["SKYTUNE_HOME"] = str(Path(folder) / name.replace(" ", "-"))
            lines.append(line(name, run_search(config(asked.rows, **{"trials": asked.trials, **more}))))
    print("\n| search | trials | rows trained | time | winner | accuracy | start of the next trials |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
