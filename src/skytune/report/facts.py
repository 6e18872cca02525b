"""The facts of a run as pairs of name and text, for the cards and tables of the page."""

from typing import Any

from ..common import text
from ..pricing.cost import dollars
from .evaluation import wilson


def headline_cards(training: dict[str, Any], found: dict[str, Any] | None, split: str | None) -> list[dict[str, str]]:
    """Return the big numbers (name, value, note): scores of `split`, training time, samples/s; those that are known."""
    cards: list[dict[str, str]] = []
    if found:
        scores, rows = found["metrics"], found["n_rows"]
        names = [name for name in ("accuracy", "f1") if name in scores] or list(scores)[:2]
        for name in names:
            note = f"{split}, {rows:,} row{'' if rows == 1 else 's'}"
            if name == "accuracy" and scores[name] is not None:
                low, high = wilson(scores[name], rows)
                note += f"; 95 % interval {low:.3f} to {high:.3f}"
            elif name == "f1":
                note += "; macro average" if len(found["classes"]) > 2 else f"; of “{found['classes'][1]['name']}”"
            cards.append(
                {"name": "F1" if name == "f1" else text.words(name), "value": text.number(scores[name]), "note": note}
            )
    seconds = (training.get("phases") or {}).get("train_s")
    if seconds is not None:
        steps = training.get("steps")
        note = f"{steps:,} optimizer steps" if steps is not None else ""
        cards.append({"name": "training time", "value": text.duration(seconds), "note": note})
    if training.get("samples_per_s") is not None:
        note = f"{text.number(training['tokens_per_s'])} tokens/s" if training.get("tokens_per_s") else ""
        cards.append({"name": "samples / s", "value": text.number(training["samples_per_s"]), "note": note})
    return cards


def run_facts(training: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the run's facts as (name, value), those that are known."""

    def whole(key: str) -> str | None:
        return None if training.get(key) is None else f"{training[key]:,}"

    best, steps = training.get("best"), training.get("steps")
    epochs = None if training.get("epochs") is None else f"{training['epochs']:g} epochs"
    batch = None
    if training.get("global_batch"):
        batch = f"{training['global_batch']} rows"
        if training.get("micro_batch") and training.get("world_size"):
            processes = f"{training['world_size']} process" + ("" if training["world_size"] == 1 else "es")
            accumulation = training.get("accumulation", 1)
            batch += f" ({processes} × micro-batch {training['micro_batch']} × accumulation {accumulation})"
    parameters = whole("parameters")
    if parameters and training.get("trainable_parameters") is not None:
        trainable = training["trainable_parameters"]
        parameters += ", all trainable" if trainable == training["parameters"] else f", {trainable:,} trainable"
    world = None
    if training.get("world_size"):
        asked = training.get("processes_asked", "?")
        world = f"{training['world_size']} (asked for: {asked})"
    waiting = training.get("data_wait_share")
    precision, asked = training.get("precision"), training.get("precision_requested")
    if asked not in (None, "auto", precision):
        precision = f"{precision} (asked for: {asked}, which the device does not have)"
    rows = [
        ("status", training.get("status")),
        ("device", training.get("device")),
        ("world size", world),
        ("strategy", training.get("strategy")),
        ("precision", precision),
        ("optimizer steps", None if steps is None else f"{steps:,}" + (f" ({epochs})" if epochs else "")),
        ("global batch", batch),
        (
            "selected weights",
            None
            if not training.get("select")
            else f"{training['select']}"
            + (f": step {best['step']:,}, validation {best['metric']} {text.number(best['value'], 4)}" if best else ""),
        ),
        ("parameters", parameters),
        ("train rows seen", whole("train_rows")),
        ("train tokens seen", whole("train_tokens")),
        (
            "padding",
            None
            if training.get("padding_share") is None
            else f"{text.percent(training['padding_share'])} of all tokens computed",
        ),
        ("MFU", None if training.get("mfu") is None else f"{text.percent(training['mfu'])} of the devices' peak"),
        ("waiting for data", None if waiting is None else f"{text.percent(waiting)} of the training time"),
        ("steps skipped (overflow)", training.get("skipped_steps") or None),
        (
            "peak memory",
            None if training.get("peak_memory_bytes") is None else text.size(training["peak_memory_bytes"]),
        ),
        ("machines", _machines(training.get("cost"))),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _machines(cost: dict[str, Any] | None) -> str | None:
    """Return what rented machines cost, and how many were lost; None where none were."""
    if not cost:
        return None
    attempts = cost["attempts"]
    lost = "" if len(attempts) < 2 else f", of which {len(attempts) - 1} attempts were lost"
    money = "price n/a" if cost["usd"] is None else f"about {dollars(cost['usd'])}"
    return f"{attempts[-1]['machine']}; {money} in all{lost}"


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
    rows = []
    for key in (
        "seed",
        "epochs",
        "max_steps",
        "batch.global_size",
        "optimizer.name",
        "optimizer.lr",
        "optimizer.weight_decay",
        "optimizer.clip_norm",
        "schedule.name",
        "schedule.warmup_ratio",
        "schedule.warmup_steps",
        "data.fraction",
        "data.max_rows",
    ):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            rows.append((key, str(value)))
    return rows


def flat(notes: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested notes as pairs of words and text."""
    rows: list[tuple[str, str]] = []
    for key, value in notes.items():
        name = f"{prefix}{text.words(str(key))}"
        if isinstance(value, dict):
            rows += flat(value, f"{name}: ")
        elif isinstance(value, (list, tuple)):
            rows.append((name, ", ".join(text.number(item) for item in value) or "none"))
        else:
            rows.append((name, text.number(value)))
    return rows
