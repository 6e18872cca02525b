"""The report of a run: one HTML page that needs nothing but itself (no script, font, image or address is loaded)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import yaml

from ..common import text
from .charts import Series, line_chart, reliability_chart
from .facts import flat, headline_cards, key_settings, phase_shares, run_facts

MOST_CLASSES = 40
"""With more classes than this a confusion matrix cannot be read; the most frequent confusions are listed instead."""


def build_report(
    *,
    title: str,
    training: dict[str, Any],
    history: list[dict[str, Any]],
    evaluations: dict[str, dict[str, Any]],
    config: dict[str, Any],
    data_notes: dict[str, Any],
    labels: Sequence[str],
    links: dict[str, str],
) -> str:
    """Return the page. It is read well at 500 and at 1400 pixels, in light and in dark, and inside an iframe.

    Args:
        title: heading; any text, as every other value here: all of it is escaped.
        training: `outputs/result.json`, and `cost_line`; empty where nothing was trained.
        history: records of `history.jsonl`; empty where nothing was trained.
        evaluations: what `evaluate_split` returned, by split; `test` gives the headline, else the first.
        config: the run's configuration as plain values.
        data_notes: what happened to the data (leaks dropped, texts truncated), by name; groups may nest.
        labels: class names.
        links: where things lie, by name: `model`, `dashboard`, ...; web addresses become links.
    """
    headline = "test" if "test" in evaluations else next(iter(evaluations), None)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(number=text.number, percent=text.percent, words=text.words)
    rest = [name for name in evaluations if name != headline]
    ordered = {name: evaluations[name] for name in ([headline] if headline else []) + rest}
    return environment.get_template("page.html.jinja").render(
        title=title,
        subtitle=_subtitle(training, labels, config),
        cards=headline_cards(training, evaluations[headline] if headline else None, headline),
        links={
            name: {"text": str(value), "web": str(value).startswith(("http://", "https://"))}
            for name, value in links.items()
            if value
        },
        metric_names=_metric_names(evaluations, len(labels)),
        evaluations={name: _view(found) for name, found in ordered.items()},
        charts=_charts(history, training),
        facts=run_facts(training),
        phases=phase_shares(training),
        cost=training.get("cost_line") or "n/a (no price known)",
        notes=flat(data_notes),
        settings=key_settings(config),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100) if config else "",
        versions=training.get("versions") or {},
    )


def _subtitle(training: dict[str, Any], labels: Sequence[str], config: dict[str, Any]) -> str:
    model, data = config.get("model") or {}, config.get("data") or {}
    source = (
        data.get("name") if data.get("source") in ("packaged", "hub") else data.get("_target_") or data.get("train")
    )
    parts = [model.get("name") or model.get("_target_"), source, f"{len(labels)} classes"]
    if training.get("world_size"):
        parts.append(f"{training['world_size']} × {training.get('device', '?')}")
    return " · ".join(str(part) for part in parts if part)


def _metric_names(evaluations: dict[str, dict[str, Any]], classes: int) -> list[str]:
    names = dict.fromkeys(name for found in evaluations.values() for name in found["metrics"])
    # With more than two classes there is no such number; a column of n/a would say that it failed.
    return [name for name in names if not (name == "roc_auc" and classes != 2)]


def _view(found: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation with what the page shows of it."""
    names = [entry["name"] for entry in found["classes"]]
    table = found["confusion"]
    confused = sorted(
        (
            (table[i][j], names[i], names[j])
            for i in range(len(names))
            for j in range(len(names))
            if i != j and table[i][j]
        ),
        key=lambda entry: -entry[0],
    )
    matrix = []
    for name, row in zip(names, table, strict=True):
        total = sum(row) or 1
        matrix.append({"name": name, "cells": [{"count": count, "share": count / total} for count in row]})
    return {
        **found,
        "names": names,
        "matrix": matrix if len(names) <= MOST_CLASSES else None,
        "confused": confused[:20],
        "reliability": reliability_chart(found["calibration"]["bins"]),
    }


def _charts(history: list[dict[str, Any]], training: dict[str, Any]) -> list[dict[str, Any]]:
    steps = [record for record in history if record.get("kind") == "step"]
    checks = [record for record in history if record.get("kind") == "validation"]
    at = [record["step"] for record in steps]
    best = (training.get("best") or {}).get("step")

    def column(key: str) -> list[float | None]:
        return [record.get(key) for record in steps]

    def checked(metric: str, color: int, name: str | None = None) -> list[Series]:
        values = [(record.get("metrics") or {}).get(metric) for record in checks]
        if not any(text.is_number(value) for value in values):
            return []
        return [Series(name or metric, [record["step"] for record in checks], values, color, dots=True)]

    charts: list[dict[str, Any]] = []

    def chart(heading: str, series: list[Series], note: str = "", **options: Any) -> None:
        if any(text.is_number(value) for line in series for value in line.y):
            charts.append(
                {"heading": heading, "series": series, "note": note, "svg": line_chart(series, heading, **options)}
            )

    def single(heading: str, key: str, note: str, smooth: bool = True) -> None:
        line = Series(heading, at, column(key), smooth=smooth)
        chart(heading, [line], note, zero=True)

    train = Series("train", at, column("loss"), 1, smooth=True)
    chart("Loss", [train, *checked("loss", 2, "validation")], f"train; last {train.last}", mark=best)
    if len(checks) > 1:  # a single validation is a number, and stands in the loss chart and the table
        chart("Validation scores", [*checked("accuracy", 2), *checked("f1", 3, "F1")], mark=best)
    single("Learning rate", "lr", f"highest recorded {_of(max, column('lr'))}", smooth=False)
    single("Gradient norm", "grad_norm", f"before clipping; median {_of(median, column('grad_norm'))}")
    single("Samples per second", "samples_per_s", f"median {_of(median, column('samples_per_s'))}")
    if len(charts) % 2:  # an odd number would leave a hole in the grid
        single("Tokens per second", "tokens_per_s", f"median {_of(median, column('tokens_per_s'))}")
    return charts


def _of(function: Callable[[list[float]], float], values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and text.is_number(value)]
    return text.number(function(known)) if known else text.MISSING
