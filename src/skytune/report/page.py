"""The report of a run: one HTML page that needs nothing but itself (no script, font, image or address is loaded)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import yaml

from ..common import text
from ..common.mappings import flatten
from ..config import ScheduleConfig, from_dict
from ..pricing.cost import dollars
from ..tasks.classification import wilson
from .charts import Series, line_chart, reliability_chart, scatter_chart

SETTINGS = (
    *("seed", "epochs", "max_steps", "batch.global_size"),
    *("optimizer.name", "optimizer.lr", "optimizer.weight_decay", "optimizer.clip_norm"),
    *("schedule.name", "schedule.warmup_ratio", "schedule.warmup_steps", "data.fraction", "data.max_rows"),
)

FEW_CLASSES = 4
"""So many stand in the subtitle with their rows."""

MOST_CLASSES = 40
"""With more classes than this a confusion matrix cannot be read; the most frequent confusions are listed instead."""


TITLES = {
    "f1": "F1",
    "entity_f1": "entity F1",
    "f1_micro": "F1 (micro)",
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
"""Of metrics whose names are no words."""


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
    warning: str = "",
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Return the page. It is read well at 500 and at 1400 pixels, in light and in dark, and inside an iframe.

    Args:
        title: heading; any text, as every other value here: all of it is escaped.
        training: `outputs/result.json`, and `cost_line`; empty where nothing was trained.
        history: records of `history.jsonl`; empty where nothing was trained.
        evaluations: what the task's `score` returned, as plain values, by split; `test` gives the headline, else the
            first.
        config: the run's configuration as plain values.
        data_notes: what happened to the data (leaks dropped, texts truncated), by name; groups may nest.
        labels: class names.
        warning: one line that stands first.
        origin: where the run was asked for: `command`, `host`, `time`, `git_commit`, `git_dirty`; those that are known.
        links: where things lie, by name: `model`, `dashboard`, ...; web addresses become links.
    """
    counted = str(data_notes.get("classes") or "") if len(labels) <= FEW_CLASSES else ""  # `2 classes: neg (60), ...`
    headline = "test" if "test" in evaluations else next(iter(evaluations), None)
    rest = [name for name in evaluations if name != headline]
    ordered = {name: evaluations[name] for name in ([headline] if headline else []) + rest}
    return render(
        "page.html.jinja",
        title=title,
        subtitle=_subtitle(training, counted or _what(evaluations, labels, config), config),
        warning=warning,
        cards=headline_cards(training, evaluations[headline] if headline else None, headline),
        links={
            name: {"text": str(value), "web": str(value).startswith(("http://", "https://"))}
            for name, value in links.items()
            if value
        },
        metric_names=list(dict.fromkeys(name for found in evaluations.values() for name in found["metrics"])),
        evaluations={name: _drawn(found) for name, found in ordered.items()},
        charts=_charts(history, training, config, list(evaluations[headline]["headline"]) if headline else []),
        facts=[*_origin_facts(origin or {}), *run_facts(training)],
        phases=phase_shares(training),
        cost=training.get("cost_line") or "n/a (no price known)",
        notes=flat(data_notes),
        settings=key_settings(config),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100) if config else "",
        versions=training.get("versions") or {},
    )


def render(template: str, **values: Any) -> str:
    """Return a page out of a template beside this file; everything but our own markup is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        number=text.number,
        percent=text.percent,
        words=text.words,
        titled=titled,
        duration=text.duration,
        dollars=dollars,
    )
    return environment.get_template(template).render(**values)


def _what(evaluations: dict[str, dict[str, Any]], labels: Sequence[str], config: dict[str, Any]) -> str:
    """Return how many classes there are, or the task where it is none of single classes."""
    classes = not evaluations or any("confusion" in found["results"] for found in evaluations.values())
    return f"{len(labels)} classes" if classes else str((config.get("task") or {}).get("name", ""))


def _subtitle(training: dict[str, Any], what: str, config: dict[str, Any]) -> str:
    model, data = config.get("model") or {}, config.get("data") or {}
    source = (
        data.get("name") if data.get("source") in ("packaged", "hub") else data.get("_target_") or data.get("train")
    )
    parts = [model.get("_target_") or model.get("name"), source, what]
    if training.get("world_size"):
        parts.append(f"{training['world_size']} × {training.get('device', '?')}")
    return " · ".join(str(part) for part in parts if part)


def _drawn(found: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation whose sections have what the page shows of them."""
    sections = []
    for section in found["sections"]:
        view = VIEWS.get(section["macro"])
        sections.append({**section, "values": view(section["values"]) if view else section["values"]})
    return {**found, "sections": sections}


def _classification(found: dict[str, Any]) -> dict[str, Any]:
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
        "confused": confused[: 20 if len(names) > MOST_CLASSES else 5],
        "orders": _orders(found["classes"]),
        "reliability": reliability_chart(found["calibration"]["bins"]),
    }


def _orders(classes: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the classes in each order in which they can be shown, by its name; one where there are few."""
    if len(classes) <= 2:
        return {"as they are numbered": list(classes)}
    return {
        "as they are numbered": list(classes),
        "lowest F1 first": sorted(classes, key=lambda entry: entry["f1"]),
        "most rows first": sorted(classes, key=lambda entry: -entry["support"]),
    }


def _scatter(found: dict[str, Any]) -> dict[str, Any]:
    return {"svg": scatter_chart([(x, y) for x, y in found["points"]], "Predicted against true")}


VIEWS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"classification": _classification, "scatter": _scatter}
"""What is drawn of a section before its macro is given it, by macro."""


def _charts(
    history: list[dict[str, Any]], training: dict[str, Any], config: dict[str, Any], first: list[str]
) -> list[dict[str, Any]]:
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
        scores = [checked(name, 2 + place, titled(name)) for place, name in enumerate(first[:2] or ["accuracy", "f1"])]
        chart("Validation scores", [line for lines in scores for line in lines], mark=best)
    single("Learning rate", "lr", f"peak {_peak_rate(config, column('lr'))}", smooth=False)
    single("Gradient norm", "grad_norm", f"before clipping; median {_of(median, column('grad_norm'))}")
    single("Samples per second", "samples_per_s", f"median {_of(median, column('samples_per_s'))}")
    if len(charts) % 2:  # an odd number would leave a hole in the grid
        single("Tokens per second", "tokens_per_s", f"median {_of(median, column('tokens_per_s'))}")
    return charts


def _peak_rate(config: dict[str, Any], recorded: Sequence[float | None]) -> str:
    """Return the highest rate of the run, which the records, of every few steps, may have missed."""
    schedule, optimizer = config.get("schedule"), config.get("optimizer")
    if not schedule or not optimizer or schedule.get("_target_"):
        return f"recorded {_of(max, recorded)}"
    size = (config.get("batch") or {}).get("global_size", ScheduleConfig.scale_reference)
    return text.number(optimizer["lr"] * from_dict(ScheduleConfig, schedule).lr_scale(size))


def _origin_facts(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    commit = origin.get("git_commit")
    dirty = ", with changes that are not committed" if origin.get("git_dirty") else ""
    rows = [
        ("date", origin.get("time")),
        ("command", origin.get("command")),
        ("host", origin.get("host")),
        ("git commit", f"{commit}{dirty}" if commit else None),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _of(function: Callable[[list[float]], float], values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and text.is_number(value)]
    return text.number(function(known)) if known else text.MISSING


def titled(metric: str) -> str:
    """Return a metric's name as a heading."""
    return TITLES.get(metric, text.words(metric))


def headline_cards(training: dict[str, Any], found: dict[str, Any] | None, split: str | None) -> list[dict[str, str]]:
    """Return the big numbers (name, value, note): scores of `split`, training time, samples/s; those that are known."""
    cards: list[dict[str, str]] = []
    if found:
        scores, rows = found["metrics"], found["n_rows"]
        told = found["headline"]
        for name in [name for name in told if name in scores] or list(scores)[:2]:
            note = f"{split}, {rows:,} row{'' if rows == 1 else 's'}"
            if told.get(name) == "share" and scores[name] is not None:
                low, high = wilson(scores[name], rows)
                note += f"; 95 % interval {low:.3f} to {high:.3f}"
            elif told.get(name, "share") not in ("share", ""):
                note += f"; {told[name]}"
            cards.append({"name": titled(name), "value": text.number(scores[name]), "note": note})
    seconds = (training.get("phases") or {}).get("train_s")
    if seconds is not None:
        steps = training.get("steps")
        note = f"{steps:,} optimizer steps" if steps is not None else ""
        cards.append({"name": "training time", "value": text.duration(seconds), "note": note})
    if training.get("samples_per_s") is not None:
        tokens = training.get("tokens_per_s")  # an image counts as one
        note = f"{text.number(tokens)} tokens/s" if tokens and tokens != training["samples_per_s"] else ""
        cards.append({"name": "samples / s", "value": text.number(training["samples_per_s"]), "note": note})
    return cards


def run_facts(training: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the run's facts as (name, value), those that are known; what it cost has a line of its own."""

    def known(key: str, form: str = "{:,}") -> str | None:
        return None if training.get(key) is None else form.format(training[key])

    def share(key: str, of: str) -> str | None:
        return None if training.get(key) is None else f"{text.percent(training[key])} of {of}"

    best, size = training.get("best"), training.get("world_size")
    batch = known("global_batch", "{} rows")
    if batch and training.get("micro_batch") and size:
        processes = f"{size} process{'' if size == 1 else 'es'}"
        accumulation = training.get("accumulation", 1)
        batch += f" ({processes} × micro-batch {training['micro_batch']} × accumulation {accumulation})"
    parameters, trainable = known("parameters"), training.get("trainable_parameters")
    if parameters and trainable is not None:
        parameters += ", all trainable" if trainable == training["parameters"] else f", {trainable:,} trainable"
    steps = known("steps")
    if steps and training.get("epochs") is not None:
        steps += f" ({training['epochs']:g} epochs)"
    selected = training.get("select")
    if selected and best:
        selected = f"{selected}: step {best['step']:,}, validation {best['metric']} {text.number(best['value'], 4)}"
    precision, asked = training.get("precision"), training.get("precision_requested")
    if asked not in (None, "auto", precision):
        precision = f"{precision} (asked for: {asked}, which the device does not have)"
    memory = training.get("peak_memory_bytes")
    rows = [
        ("status", training.get("status")),
        ("device", training.get("device")),
        ("world size", f"{size} (asked for: {training.get('processes_asked', '?')})" if size else None),
        ("strategy", training.get("strategy")),
        ("precision", precision),
        ("optimizer steps", steps),
        ("global batch", batch),
        ("selected weights", selected or None),
        ("parameters", parameters),
        ("train rows seen", known("train_rows")),
        ("train tokens seen", known("train_tokens")),
        ("padding", share("padding_share", "all tokens computed")),
        ("MFU", share("mfu", "the devices' peak")),
        ("waiting for data", share("data_wait_share", "the training time")),
        ("steps skipped (overflow)", training.get("skipped_steps") or None),
        ("peak memory", None if memory is None else text.size(memory)),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def phase_shares(training: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name, time, share of the whole and dollars (empty where no price is known) of each phase."""
    phases = {
        key.removesuffix("_s"): value for key, value in (training.get("phases") or {}).items() if text.is_number(value)
    }
    total = sum(phases.values())
    attempts = (training.get("cost") or {}).get("attempts") or []
    lost = [attempt.get("usd") for attempt in attempts[:-1]]

    def paid(name: str, seconds: float) -> str:
        if name == "lost":
            return dollars(None if None in lost else sum(lost)) if lost else ""
        hourly = attempts[-1].get("hourly_usd") if attempts else None
        return "" if hourly is None else dollars(seconds / 3600 * hourly)

    return [
        {"name": name, "time": text.duration(value), "share": value / total if total else 0.0, "usd": paid(name, value)}
        for name, value in phases.items()
    ]


def key_settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the few settings that people look for first."""
    found = flatten(config)
    return [(key, str(found[key])) for key in SETTINGS if found.get(key) is not None]


def flat(notes: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested notes as pairs of words and text; what did not happen (0, nothing) is left out."""
    rows: list[tuple[str, str]] = []
    for key, value in notes.items():
        if value in (0, "", [], None):
            continue
        name = f"{prefix}{text.words(str(key))}"
        if isinstance(value, dict):
            rows += flat(value, f"{name}: ")
        elif isinstance(value, (list, tuple)):
            rows.append((name, ", ".join(text.number(item) for item in value) or "none"))
        else:
            rows.append((name, text.number(value)))
    return rows
