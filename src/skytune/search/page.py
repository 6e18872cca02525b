"""The page of a search: the best settings, whether they are better than the plain configuration, and how they were
found; one HTML file that needs nothing but itself."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ..common import text
from ..common.text import number
from ..config.schema.search import shown
from ..pricing.cost import dollars
from ..report.charts import AXIS, MUTED, SERIES, SURFACE, Sketch, drawn
from ..report.page import render

Found = Mapping[str, Any]

FEW = 40
"""Values of one key that are written at its axis; of more, some."""


def build_search_page(*, name: str, found: Found, space: Mapping[str, str], command: str) -> str:
    """Return the page, read well at 500 and at 1400 pixels, in light and in dark.

    Args:
        name: of the search.
        found: see `search.results.findings`.
        space: values by key, as they are written.
        command: runs the winner.
    """
    trials, keys = ranked(found)
    return render(
        "search.html.jinja",
        title=name,
        subtitle=_subtitle(found),
        cards=_cards(found),
        charts=_charts(found, space),
        share=_share,
        keys=keys,
        trials=trials,
        rungs=found["rungs"],
        metric=found["metric"],
        winner=found["winner"],
        confirmation=found["confirmation"],
        paired=found["paired"],
        space=space,
        command=command,
        shown=shown,
        stopped=found["stopped"],
        untried=found["untried"],
        repeated=found["repetitions"] > 1,
    )


def ranked(found: Found) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the trials, those of the highest rungs and the best of them first, and the keys of their settings."""

    def place(one: Mapping[str, Any]) -> tuple[float, ...]:
        score = one["scores"][-1] if one["scores"] else None
        return (-one["rung"], math.inf if score is None else -score if found["maximize"] else score, one["number"])

    trials = sorted(found["trials"], key=place)
    return trials, list(dict.fromkeys(key for one in trials for key in one["setting"]))


def with_half(shown: str, half: float | None) -> str:
    """Return a mean with half the width of its interval, where that is known."""
    return shown if half is None else f"{shown} ± {number(half)}"


def _subtitle(found: Found) -> str:
    steps = " → ".join(str(rung["trials"]) for rung in found["rungs"])
    parts = [
        text.counted(len(found["trials"]), "trial"),
        f"{steps} on {len(found['rungs'])} rungs" if len(found["rungs"]) > 1 else "all to the end",
        f"{found['repetitions']} repetitions each" if found["repetitions"] > 1 else "",
        f"{found['samples']:,} rows trained",
    ]
    return " · ".join(part for part in parts if part)


def _cards(found: Found) -> list[dict[str, str]]:
    winner, one, price = found["winner"], found["confirmation"], found["usd_per_hour"]
    cards = []
    if winner is not None:
        cards += [
            {
                "name": f"best {found['metric']}",
                "value": with_half(number(winner["score"]), winner["half_width"]),
                "note": f"trial {winner['number']}, validation: it chose the settings",
            },
            {
                "name": f"test {found['metric']}",
                "value": number(winner["test_score"]),
                "note": "the test split chose nothing",
            },
        ]
    if one is not None:
        cards.append(
            {
                "name": "against the plain configuration",
                "value": with_half(f"{one['difference']:+.3f}", one["difference_half_width"]),
                "note": f"test {found['metric']}, {len(one['best'])} other seeds: {one['verdict']}",
            }
        )
    paid = found["seconds"] / 3600 * price if price else found["usd"]
    usd = f"{dollars(paid)}, " if paid is not None else ""
    failed = f"{found['failed']} failed" if found["failed"] else "none failed"
    untried = f", {found['untried']} not tried" if found["untried"] else ""
    cards.append({"name": "spent", "value": text.duration(found["seconds"]), "note": f"{usd}{failed}{untried}"})
    return cards


def _charts(found: Found, space: Mapping[str, str]) -> list[dict[str, Any]]:
    known = [one for one in found["trials"] if one["scores"] and one["scores"][-1] is not None]
    drawn_ = [
        (
            "Rungs",
            _rungs(found, known),
            "A line is a trial; where it ends, others were better. The thick one is the best.",
        ),
        (
            "Trials",
            _over_trials(found, known),
            "On the first rung, where all stand equal; the line is the best so far.",
        ),
        ("Settings", _parallel(found, known, space), "A line is a trial, from value to value; the darker, the better."),
        ("What matters", _importance(found), "Share in the variance of the scores on the first rung (fANOVA)."),
    ]
    return [{"heading": heading, "svg": svg, "note": note} for heading, svg, note in drawn_ if svg is not None]


def _rungs(found: Found, known: Sequence[Mapping[str, Any]]) -> Markup | None:
    if len(found["rungs"]) < 2 or not known:
        return None
    shares = [rung["share"] for rung in found["rungs"]]
    best = (found["winner"] or {}).get("number")

    def draw(sketch: Sketch) -> None:
        axes = sketch.axes
        for one in sorted(known, key=lambda one: (one["number"] == best, one["rung"])):
            is_best = one["number"] == best
            color = SERIES[1] if is_best else SERIES[0]
            alpha = 1.0 if is_best else 0.25 + 0.6 * one["rung"] / len(shares)
            axes.plot(
                shares[: len(one["scores"])],
                one["scores"],
                color=color,
                alpha=alpha,
                linewidth=2.4 if is_best else 1.2,
                marker="o",
                markersize=5 if is_best else 3.5,
            )
        axes.set_xscale("log")
        axes.set_xticks(shares, [_share(share) for share in shares])
        axes.minorticks_off()
        axes.set_xlabel("share of the steps")
        axes.set_ylabel(f"{found['metric']} (validation)")

    return drawn("Scores at every rung", draw)


def _share(share: float) -> str:
    return "all" if share == 1 else f"1/{round(1 / share)}"


def _over_trials(found: Found, known: Sequence[Mapping[str, Any]]) -> Markup | None:
    points = [(float(one["number"]), one["scores"][0]) for one in known if one["scores"][0] is not None]
    if len(points) < 2:
        return None

    def draw(sketch: Sketch) -> None:
        from matplotlib.ticker import MaxNLocator

        run = np.maximum.accumulate if found["maximize"] else np.minimum.accumulate
        so_far = run([y for _, y in points]).tolist()
        sketch.line([(x, y) for (x, _), y in zip(points, so_far, strict=True)], MUTED, steps=True)
        sketch.points(points, 0)
        sketch.axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        sketch.axes.set_xlabel("trial")
        sketch.axes.set_ylabel(f"{found['metric']} (validation)")

    return drawn("Scores on the first rung, by trial", draw)


def _parallel(found: Found, known: Sequence[Mapping[str, Any]], space: Mapping[str, str]) -> Markup | None:
    keys = list(dict.fromkeys(key for one in known for key in one["setting"]))
    scored = [one for one in known if one["scores"][0] is not None]
    if not keys or len(scored) < 2:
        return None
    columns = [
        _Column(key, [one["setting"].get(key) for one in scored], log=space.get(key, "").startswith("log"))
        for key in keys
    ]
    columns.append(_Column(found["metric"], [one["scores"][0] for one in scored]))
    order = sorted(range(len(scored)), key=lambda i: scored[i]["scores"][0], reverse=not found["maximize"])
    best = (found["winner"] or {}).get("number")

    def draw(sketch: Sketch) -> None:
        axes, last = sketch.axes, len(columns) - 1
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for rank, i in enumerate(order):  # the best ones last, on top
            is_best = scored[i]["number"] == best
            color = SERIES[1] if is_best else SERIES[0]
            alpha = 1.0 if is_best else 0.12 + 0.68 * (rank / max(1, len(order) - 1)) ** 2
            heights = [column.heights[i] for column in columns]
            axes.plot(range(len(columns)), heights, color=color, alpha=alpha, linewidth=2.4 if is_best else 1.2)
        for x, column in enumerate(columns):
            axes.axvline(x, color=AXIS, linewidth=1, zorder=0)
            for y, label in column.ticks:
                axes.annotate(
                    label,
                    (x, y),
                    xytext=(-4 if x == last else 4, 0),
                    textcoords="offset points",
                    ha="right" if x == last else "left",
                    va="center",
                    fontsize=10,
                    color=MUTED,
                    bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1, "alpha": 0.8},
                )
        axes.set_yticks([])
        names = [column.name.rpartition(".")[2] if len(columns) > 3 else column.name for column in columns]
        axes.set_xticks(range(len(columns)), names)
        for label, where in zip(axes.get_xticklabels(), ["left", *["center"] * (last - 1), "right"], strict=True):
            label.set_horizontalalignment(where)
        axes.set_ylim(-0.06, 1.06)
        axes.tick_params(length=0)

    return drawn("Settings and scores of all trials", draw)


class _Column:
    """One axis of parallel coordinates."""

    def __init__(self, name: str, values: Sequence[Any], log: bool = False) -> None:
        self.name = name
        kinds = {type(value) for value in values}
        if kinds <= {int, float} and len(set(values)) > 1:
            numbers = np.array(values, dtype=float)
            scaled = np.log(numbers) if log else numbers
            low, high = scaled.min(), scaled.max()
            self.heights = ((scaled - low) / (high - low)).tolist()
            few = sorted(set(scaled.tolist()))
            back = np.array(few) if len(few) <= 4 else np.linspace(low, high, 4)
            marks = (back - low) / (high - low)
            self.ticks = [
                (float(y), f"{np.exp(value) if log else value:.3g}") for y, value in zip(marks, back, strict=True)
            ]
        else:
            levels = list(dict.fromkeys(map(shown, values)))
            place = {level: i / (len(levels) - 1) if len(levels) > 1 else 0.5 for i, level in enumerate(levels)}
            self.heights = [place[shown(value)] for value in values]
            every = math.ceil(len(levels) / FEW)
            self.ticks = [(place[level], level) for level in levels[::every]]


def _importance(found: Found) -> Markup | None:
    shares: Mapping[str, float] = found["importance"]
    if not shares:
        return None

    def draw(sketch: Sketch) -> None:
        axes, items = sketch.axes, list(shares.items())[::-1]
        axes.barh(range(len(items)), [share for _, share in items], color=SERIES[0], height=0.6)
        for y, (_, share) in enumerate(items):
            axes.annotate(text.percent(share, 0), (share, y), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(items)), [key for key, _ in items])
        axes.set_xlim(0, 1.12 * max(share for _, share in items) or 1)
        axes.set_xticks([])
        axes.grid(False)
        axes.tick_params(length=0)

    return drawn("Importance of every key", draw)
