"""The page of an experiment: one HTML file that needs nothing but itself, from the table of results."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ..common import text
from ..pricing.cost import dollars, spent, spent_in_all
from ..report.fit import LEVEL, MOST, Fit, Row, fits, nearest
from ..report.page import render
from . import figures
from .insights import FACTOR, Group, groups, number_in, same_level, scalings, sentences, varying

MOST_SENTENCES = 8
"""More are folded away."""

MEANS = "Means over the seeds; bars are 95 % intervals."
ONE = "One seed each: noise unknown."

HELD = {
    "global_batch": "the global batch is the same in all cells: the same optimization, spread over more devices",
    "per_device_batch": "the batch of one device is the same in all cells: more devices take larger and fewer "
    "steps, so quality may differ as well as time",
    "steps": "the number of optimizer steps is the same in all cells, however many rows that is",
}


def build_experiment_page(
    *, name: str, rows: Sequence[Row], design: Mapping[str, Any], planned: Sequence[Row] = (), note: str = ""
) -> str:
    """Return the page, read well at 500 and at 1400 pixels, in light and in dark.

    Args:
        rows: of the table (plain dicts).
        design: `study` of the configuration, as plain values.
        planned: rows of the design's cells with `samples` and `steps`, for the cells that did not run.
        note: something to say about all of it (where it ran).
    """
    found = groups(rows)
    models = fits(rows)
    factors = list(dict.fromkeys(key.removeprefix(FACTOR) for row in rows for key in row if key.startswith(FACTOR)))
    return render(
        "study.html.jinja",
        title=name,
        note=note,
        subtitle=_subtitle(rows, found, design),
        cards=_cards(rows, varying(found), max(len(rows), len(planned))),
        told=sentences(found),
        most=MOST_SENTENCES,
        charts=_charts(varying(found)),
        factors=factors,
        batches="batch" not in factors or str(design.get("held")) == "per_device_batch",
        table=[([_asked(group, name) for name in factors], group) for group in found],
        priced=any(group.values["usd_total"] for group in found),
        seeds=max((group.count for group in found), default=1),
        ended=[{**row, "usd_total": spent(row)} for row in rows if row.get("status") != "done"],
        adopted=[row for row in rows if row.get("origin") == "adopted"],
        models=list(models.values()),
        predictions=_predictions(models, rows, planned, factors),
        level=LEVEL,
        off=MOST,
        held=HELD.get(str(design.get("held")), ""),
        design=yaml.safe_dump(dict(design), sort_keys=False, allow_unicode=True, width=100),
        jobs=[row for row in rows if row.get("job")],
    )


def _subtitle(rows: Sequence[Row], found: Sequence[Group], design: Mapping[str, Any]) -> str:
    models = list(dict.fromkeys(str(row.get("model")) for row in rows if row.get("model")))
    few, many = (some((group.count for group in found), default=len(design.get("seeds") or [])) for some in (min, max))
    seeds = text.counted(many, "seed") if few == many else f"{few} to {many} seeds"
    parts = [text.counted(len(rows), "cell"), seeds, ", ".join(models[:3])]
    return " · ".join(part for part in parts if part)


def _cards(rows: Sequence[Row], found: Sequence[Group], cells: int) -> list[dict[str, str]]:
    done = [row for row in rows if row.get("status") == "done"]
    failed = sum(row.get("status") == "failed" for row in rows)
    stopped = sum(row.get("status") == "stopped" for row in rows)
    missing = cells - len(rows)
    others = [
        f"{missing} did not run" if missing else "",
        f"{failed} failed" if failed else "",
        f"{stopped} stopped early" if stopped else "",
    ]
    cards = [
        {
            "name": "cells done",
            "value": f"{len(done)} of {cells}",
            "note": ", ".join(part for part in others if part) or "none failed",
        }
    ]
    usd, unknown = spent_in_all(rows)
    if usd is None:
        cards.append({"name": "spent", "value": text.MISSING, "note": "no price known"})
    else:
        note = f"{text.counted(unknown, 'cell')} without a known price not counted"
        cards.append({"name": "spent", "value": dollars(usd), "note": note if unknown else "all attempts counted"})
    seconds = sum(row["total_s"] for row in rows if row.get("total_s"))
    cards.append({"name": "paid time", "value": text.duration(seconds), "note": "of all cells, one after the other"})
    best = max(
        (group for group in found if group.mean("accuracy") is not None),
        key=lambda group: group.mean("accuracy") or 0.0,
        default=None,
    )
    if best is not None:
        count = len(best.values["accuracy"])
        over = "one seed" if count == 1 else f"mean of {count} seeds"
        cards.append(
            {"name": "best accuracy", "value": text.number(best.mean("accuracy")), "note": f"{best.label}; {over}"}
        )
    return cards


def _charts(found: Sequence[Group]) -> list[dict[str, Any]]:
    priced = any(group.values["usd_total"] for group in found)
    column = "usd_total" if priced else "total_s"
    counts = {len(group.values["accuracy"]) for group in found if group.values["accuracy"]}
    means = MEANS if max(counts, default=1) > 1 else ONE
    means += " Without an interval: one seed." if len(counts) > 1 and min(counts) == 1 else ""
    shares = "; per cents are shares of the ideal" if len(scalings(found)) <= figures.MOST_SHARES else ""
    drawn = [
        ("Time against cost", figures.time_against_cost(found), "Lines join what no other cell beats in both."),
        (
            f"Accuracy against {'cost' if priced else 'time'}",
            figures.quality_against(found, column),
            means + ("" if priced else " No price is known: time, not cost."),
        ),
        ("Speed-up", figures.speedup(found), f"Training steps alone{shares}."),
        (
            "Accuracy over global batch",
            figures.quality_over(found, "global_batch", "global batch"),
            f"{means} Points that share a batch stand side by side.",
        ),
        ("Accuracy over rows", figures.quality_over(found, "rows", "rows of the train split"), means),
    ]
    return [{"heading": heading, "svg": svg, "note": note} for heading, svg, note in drawn if svg is not None]


def _asked(group: Group, name: str) -> Any:
    """Return a level as the design writes it, with the rows that trained where those are others."""
    asked = group.row.get(f"{FACTOR}{name}")
    if name != "rows":
        return asked
    number, trained = number_in(asked), group.levels[name]
    shown = asked if number is None else f"{number:,}"
    return shown if number == trained or not text.is_number(trained) else f"{shown} ({trained:,} trained)"


def _predictions(
    models: Mapping[tuple[str, ...], Fit], rows: Sequence[Row], planned: Sequence[Row], factors: Sequence[str]
) -> list[dict[str, Any]]:
    done = {_levels(row, factors) for row in rows if row.get("status") == "done"}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in planned:
        levels = _levels(row, factors)
        if levels in done or levels in found or not (row.get("samples") and row.get("steps")):
            continue
        fit = nearest(models, row)
        if fit is not None:
            shown = [row.get(f"{FACTOR}{name}") for name in factors]
            found[levels] = {"levels": shown, "guess": fit.predict(row) if fit.usable else None}
    return list(found.values())


def _levels(row: Row, factors: Sequence[str]) -> tuple[str, ...]:
    return tuple(same_level(row.get(f"{FACTOR}{name}")) for name in factors)
