"""Whether a model gets a stage: better than the one that has it by more than chance, on rows that neither was trained
on, without a class that gets worse and without worse probabilities."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..common import text
from ..config import PromoteConfig
from ..config.schema.evaluation import SMALLER
from ..runs.paired import paired
from ..training.outputs import taken
from .gate import GateScores
from .markdown import plain
from .results import classes_of

SAMPLES = 1000
"""Of the bootstrap of a metric."""


@dataclass(frozen=True)
class Check:
    """One condition."""

    name: str
    found: str
    limit: str
    passed: bool


@dataclass(frozen=True)
class Decision:
    """What was decided, and by what."""

    model: str
    stage: str
    challenger: str
    incumbent: str
    """Empty where nobody has the stage."""

    accepted: bool
    rows: int = 0
    metric: str = ""
    values: tuple[float | None, float | None] = (None, None)
    """Of the incumbent (or of always saying the most frequent class) and of the challenger."""

    checks: list[Check] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    """`name`, `rows`, and F1 `before` and `after`."""

    alone: tuple[int, int] | None = None
    """Rows that only the incumbent, and only the challenger has right."""

    forced: bool = False
    kind: str = "promotion"

    @property
    def line(self) -> str:
        """The decision in one line, with its numbers."""
        if self.kind == "rollback":
            return plain(f"{self.challenger} is {self.stage} of {self.model} again; {self.incumbent} is archived")
        failed = "; ".join(f"{check.name}: {check.found} ({check.limit})" for check in self.checks if not check.passed)
        if not self.accepted:
            return plain(f"{self.challenger} is not promoted to {self.stage} of {self.model}: {failed}")
        before = f"; before: {self.incumbent}" if self.incumbent else ""
        why = f"forced in spite of {failed}" if self.forced else "; ".join(c.found for c in self.checks[:1])
        return plain(f"{self.challenger} is {self.stage} of {self.model}: {why}{before}")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "line": self.line}


def decide(new: GateScores, old: GateScores | None, limits: PromoteConfig, model: str, before: str = "") -> Decision:
    """Decide by what two models say to the same rows; without `old`, nobody has the stage.

    Args:
        before: the version that has the stage, as people know it.
    """
    stage = limits.stage.value if limits.stage else ""
    if old is not None:
        rows = np.intersect1d(new.rows, old.rows)
        new, old = new.on(rows), old.on(rows)
    checks = [_leak(found) for found in (new, old) if found is not None]
    names = [sorted(found.scoring.names) for found in (new, old) if found is not None]
    more: dict[str, Any] = {}
    if names[0] != names[-1] or not len(new.rows):
        why = f"{', '.join(names[0])} against {', '.join(names[-1])}" if len(new.rows) else "no row that both have"
        checks.insert(0, Check("the same rows and classes", why, "both models need them", False))
    else:
        after = new.task.score(new.collected, new.targets, new.scoring).as_dict()
        if old is None:
            first, more = _first(new, after["metrics"].get(new.metric), limits)
        else:
            earlier = old.task.score(old.collected, old.targets, old.scoring).as_dict()
            first, more = _gain(new, old, (earlier["metrics"], after["metrics"]), limits)
            checks += _calibration(earlier["results"], after["results"], limits)
            if table := _classes(classes_of(earlier["results"]), classes_of(after["results"])):
                checks.append(_worst(table, limits))
                more["classes"] = table
        checks.insert(0, first)
    passed = all(check.passed for check in checks)
    return Decision(
        model=model,
        stage=stage,
        challenger=new.name,
        incumbent=before or (old.name if old else ""),
        accepted=passed or limits.force,
        forced=limits.force and not passed,
        rows=len(new.rows),
        metric=new.metric,
        checks=checks,
        **more,
    )


def _leak(found: GateScores) -> Check:
    share = f"{found.trained_on:,} of {len(found.rows):,}"
    return Check(f"held-out rows that {found.name} was trained on", share, "must be 0", found.trained_on == 0)


def _first(new: GateScores, value: float | None, limits: PromoteConfig) -> tuple[Check, dict[str, Any]]:
    """Return whether the first of its name is better than who always says the most frequent class, where that means
    something."""
    right = _right(new) if new.metric == "accuracy" else None
    if right is None:
        told = f"{new.metric} {text.number(value, 4)} on {text.counted(len(new.rows), 'row')}"
        return Check("first of its name", told, "", True), {"values": (None, value)}
    assert isinstance(new.targets, np.ndarray)
    majority = (new.targets == np.bincount(new.targets).argmax()).astype(np.float64)
    return _mcnemar(majority, right, ", that of always saying the most frequent class,", limits)


def _gain(
    new: GateScores, old: GateScores, scores: tuple[Mapping[str, Any], Mapping[str, Any]], limits: PromoteConfig
) -> tuple[Check, dict[str, Any]]:
    """Return whether the challenger is better by more than chance, and what a decision says of it."""
    rights = [_right(found) for found in (old, new)] if new.metric == "accuracy" else [None, None]
    if rights[0] is not None and rights[1] is not None:
        return _mcnemar(rights[0], rights[1], "", limits)
    before, after = (found.get(new.metric) for found in scores)
    low, high = _bootstrap(new, old, limits.alpha)
    told = f"{new.metric} {text.number(after, 4)} against {text.number(before, 4)} on "
    told += f"{text.counted(len(new.rows), 'row')}, gain {text.number(low)} to {text.number(high)}"
    must = f"a paired bootstrap's {100 * (1 - limits.alpha):g} % interval must lie above 0"
    return Check("better by more than chance", told, must, low > 0), {"values": (before, after)}


def _mcnemar(before: np.ndarray, after: np.ndarray, whose: str, limits: PromoteConfig) -> tuple[Check, dict[str, Any]]:
    found = paired(before, after)
    assert found.p is not None and found.alone is not None
    told = f"accuracy {found.means[1]:.4f} against {found.means[0]:.4f}{whose} on {text.counted(found.rows, 'row')}"
    told += f", {_p(found.p)} (only before right {found.alone[0]:,}, only now {found.alone[1]:,})"
    fine = found.difference > 0 and found.p < limits.alpha
    check = Check("better by more than chance", told, f"McNemar's p must be below {limits.alpha:g}", fine)
    return check, {"values": found.means, "alone": found.alone}


def _p(value: float) -> str:
    return f"p = {text.number(value)}" if value >= 1e-4 else "p < 0.0001"


def _right(found: GateScores) -> np.ndarray | None:
    """Return which rows have the right class, as numbers; None where a row has something else than one class."""
    answers, targets = found.task.predicted(found.collected, found.scoring).get("prediction"), found.targets
    if answers is None or not isinstance(targets, np.ndarray) or targets.ndim != 1:
        return None
    return (np.array(answers, object) == np.array(found.scoring.names, object)[targets]).astype(np.float64)


def _bootstrap(new: GateScores, old: GateScores, alpha: float) -> tuple[float, float]:
    """Return the interval of the gain in the main number, over rows drawn with replacement, the same for both; more is
    better."""
    random, gains = np.random.default_rng(0), []
    sign = -1.0 if new.metric in SMALLER else 1.0

    def value(found: GateScores, at: np.ndarray) -> float:
        extra = {k: v for k, v in found.scoring.extra.items() if found.metric == k or found.metric.startswith(f"{k}_")}
        asked = [] if extra or found.metric == "loss" else [found.metric]
        scoring = replace(found.scoring, metrics=asked, extra=extra, shown=None)
        got = found.task.score(found.collected.take(at), taken(found.targets, at), scoring).metrics.get(found.metric)
        return float("nan") if got is None else sign * got

    for _ in range(SAMPLES):
        at = random.integers(0, len(new.rows), len(new.rows))
        gains.append(value(new, at) - value(old, at))
    known = np.array(gains)[np.isfinite(gains)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.percentile(known, [50 * alpha, 100 - 50 * alpha])
    return float(low), float(high)


def _calibration(before: Mapping[str, Any], after: Mapping[str, Any], limits: PromoteConfig) -> list[Check]:
    old, new, most = before.get("calibration_error"), after.get("calibration_error"), limits.max_calibration_rise
    if old is None or new is None:
        return []
    return [Check("calibration error", f"{new:.4f} against {old:.4f}", f"may rise by {most:g}", new - old <= most)]


def _classes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {row["name"]: row.get("f1") for row in before}
    return [
        {"name": row["name"], "rows": row.get("support"), "before": known.get(row["name"]), "after": row.get("f1")}
        for row in after
        if text.is_number(row.get("f1")) and text.is_number(known.get(row["name"]))
    ]


def _worst(table: list[dict[str, Any]], limits: PromoteConfig) -> Check:
    worst = max(table, key=lambda row: row["before"] - row["after"])
    told = f"F1 of {worst['name']} {worst['after']:.4f} against {worst['before']:.4f}"
    most = limits.max_class_drop
    fine = bool(worst["before"] - worst["after"] <= most)
    return Check("the class that lost most", told, f"may lose {most:g}", fine)
