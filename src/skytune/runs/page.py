"""The page that compares runs: learning curves of all in the same charts, scores side by side, and what differs."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from ..common import text
from ..config import ConfigError
from ..job import JobDir
from ..pricing.cost import dollars
from ..report.charts import SERIES, Series, line_chart
from ..report.page import render
from ..report.scoring import write_file
from .catalog import RunRecord
from .compare import Comparison
from .tables import results, score

MOST_CURVES = 12
"""Runs whose curves can be told apart; the table has all."""


def write(path: Path, runs: Sequence[RunRecord], pairs: Sequence[Comparison]) -> None:
    """Write the page.

    Args:
        runs: the first one is what the others are compared with.
        pairs: the first run with each of the others.

    Raises:
        ConfigError: the file's name does not end like a page's.
        UserError: it cannot be written.
    """
    if path.suffix not in (".html", ".htm"):
        raise ConfigError(f"--html {path}: must end with .html")
    write_file(path.absolute(), build(runs, pairs).encode())


def build(runs: Sequence[RunRecord], pairs: Sequence[Comparison]) -> str:
    """Return the page as HTML that loads nothing."""
    names = short_names([run.key for run in runs])
    metrics = list(dict.fromkeys(name for run in runs for name in run.scores.get("metrics") or {}))
    return render(
        "compare.html.jinja",
        title=f"{len(runs)} runs" if len(runs) > 2 else " and ".join(names),
        charts=_charts(runs[:MOST_CURVES], names),
        left_out=max(0, len(runs) - MOST_CURVES),
        metrics=metrics,
        table=[
            {
                "name": name,
                "key": run.key,
                "color": color,
                "facts": [f"{run.created:%Y-%m-%d %H:%M}", run.status, run.data, run.model],
                "score": score(run),
                "numbers": [(run.scores.get("metrics") or {}).get(metric) for metric in metrics],
                "seconds": run.seconds,
                "usd": dollars(run.usd),
                "size": text.size(run.size),
            }
            for run, name, color in zip(runs, names, _colors(), strict=False)
        ],
        pairs=[
            {"names": (names[0], name), "told": results(found), "groups": _groups(found), "rows": found.rows}
            for found, name in zip(pairs, names[1:], strict=True)
        ],
    )


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the hashes of keys where all have one name, else the keys."""
    common = [key.rpartition("-")[0] for key in keys]
    return [key.rpartition("-")[2] for key in keys] if len(set(common)) == 1 and len(keys) > 1 else list(keys)


def _colors() -> Any:
    return cycle(range(1, len(SERIES) + 1))


def _charts(runs: Sequence[RunRecord], names: Sequence[str]) -> list[dict[str, Any]]:
    histories = [JobDir(run.folder).read_history() for run in runs]
    checks = list(
        dict.fromkeys(
            name
            for found in histories
            for record in found
            if record.get("kind") == "validation"
            for name in record["metrics"]
        )
    )
    charts: list[dict[str, Any]] = []

    def chart(heading: str, kind: str, value: Callable[[dict[str, Any]], Any], **options: Any) -> None:
        lines = []
        for found, name, color in zip(histories, names, _colors(), strict=False):
            records = [record for record in found if record.get("kind") == kind]
            values = [value(record) for record in records]
            if any(map(text.is_number, values)):
                lines.append(Series(name, [record["step"] for record in records], values, color, **options))
        if lines:
            charts.append({"heading": heading, "series": lines, "svg": line_chart(lines, heading)})

    chart("Training loss", "step", lambda record: record.get("loss"), smooth=True)
    for metric in sorted(checks, key=lambda name: (name != "loss", name != "accuracy", checks.index(name)))[:3]:
        chart(f"Validation {metric}", "validation", lambda record, m=metric: record["metrics"].get(m), dots=True)  # type: ignore[misc]
    chart("Learning rate", "step", lambda record: record.get("lr"))
    chart("Samples per second", "step", lambda record: record.get("samples_per_s"), smooth=True)
    return charts


def _groups(found: Comparison) -> list[tuple[str, list[Any]]]:
    decides, others = ([key for key in found.keys if key.decides is wanted] for wanted in (True, False))
    groups = [("keys that decide the result", decides), ("code", found.code), ("packages", found.packages)]
    return [
        (title, entries) for title, entries in [*groups, ("machine", found.machine), ("other keys", others)] if entries
    ]
