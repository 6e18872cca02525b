"""What a search has found: the best settings, their test score, what each key matters, and whether they are better than
the plain configuration at all; as plain values for the page, the summary and `search.take`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.text import columns, counted, duration, number, percent
from ..config import RunConfig, UserError, to_dict
from ..config.folders import home
from ..config.schema.search import shown
from ..job import JobDir
from ..launch import Launcher
from ..launch.run_dir import slug
from ..pricing.cost import dollars
from ..report.scoring import write_file
from ..study.insights import half_width
from ..study.table import CSV, frame, write_table
from .budget import allowed_seconds, check_budget, elapsed
from .driver import Search, run_search
from .ladder import Ladder, ladder_of
from .metric import scores_of
from .page import build_search_page, ranked, with_half
from .proposer import TrialScore, importances, write_journal
from .record import FAILED, Trial, read_record, score_at, search_store
from .space import described, search_name

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PAGE, JOURNAL = "report.html", "optuna.journal"


def results(
    config: RunConfig, launcher: Callable[[], Launcher] | None = None, stack: Mapping[str, Any] | None = None
) -> "pd.DataFrame":
    """Run what has no result yet (not with `report_only`); return the table, and write what was found beside it.

    Raises:
        UserError: see `run_search`; nothing is there to be drawn.
    """
    if config.search.report_only:
        search = Search(config, search_store(search_name(config)))
        if read_record(search.store) is None:
            raise UserError(f"search.report_only: there is no search in {search.store.path}")
        search.record.open(search.record.ladder, search.trials)
    else:
        search = run_search(config, launcher, stack)
    found = findings(search)
    search.record.save(result=found)
    trials = [(one["setting"], one["scores"], one["status"]) for one in found["trials"]]
    write_journal(search.store.path / JOURNAL, search.space, trials, maximize=search.maximize)
    return table_of(search)


def table_of(search: Search) -> "pd.DataFrame":
    """Return one row for every cell, in the order of the trials: trial, how far it came, its score, then the columns of
    every experiment."""
    rows, leading = [], []
    cells = [(trial.number, cell) for trial in search.record.trials for cell in trial.cells]
    cells += [(-1, cell) for pair in search.confirmation() for cell in pair]
    for number_, cell in cells:
        row = dict(search.record.row(cell))
        if not row:
            continue
        scores = row.get("scores") or []
        rows.append(row)
        leading.append(
            {
                "trial": number_ if number_ >= 0 else None,
                "rung": len(scores) - 1 if scores else None,
                "score": scores[-1]["score"] if scores else None,
                "test_score": row.get("test_score"),
            }
        )
    found = frame(rows)
    import pandas as pd

    kinds = {"trial": "Int64", "rung": "Int64", "score": "Float64", "test_score": "Float64"}
    for place, (name, kind) in enumerate(kinds.items()):
        found.insert(place, name, pd.array([one[name] for one in leading], dtype=kind))
    return found


def findings(search: Search) -> dict[str, Any]:
    """Return what was found, as plain values."""
    record, ladder = search.record, search.ladder
    winner = search.winner()
    first = [TrialScore(trial.setting, record.score(trial, 0)) for trial in record.trials]
    untried = max(0, search.trials - sum(record.ended(trial, 0) for trial in record.trials))
    found: dict[str, Any] = {
        "metric": search.metric,
        "maximize": search.maximize,
        "rungs": [{"share": ladder.share(rung), "trials": len(record.standing(rung))} for rung in range(ladder.rungs)],
        "trials": [_trial(search, trial) for trial in record.trials],
        "failed": sum(record.failed(trial) for trial in record.trials),
        "untried": untried,
        "stopped": search.stopped,
        "seconds": round(elapsed(search.store), 3),
        "allowed_seconds": allowed_seconds(search.config),
        "usd_per_hour": None if search.design.machines else search.price.usd_per_hour,
        "usd": search.spent(),
        "max_usd": search.design.max_usd,
        "importance": importances(search.space, first, maximize=search.maximize),
        "samples": sum(int(record.row(cell).get("samples") or 0) for trial in record.trials for cell in trial.cells),
        "repetitions": len(search.space.repetitions),
        "winner": None,
        "confirmation": None,
        "paired": [],
    }
    if winner is not None:
        found["winner"] = _winner(search, winner)
        found["confirmation"] = _confirmation(search)
        found["paired"] = _paired(search, winner)
    return found


def _trial(search: Search, trial: Trial) -> dict[str, Any]:
    rows = [search.record.row(cell) for cell in trial.cells]
    highest = search.record.highest(trial)
    values = [score for row in rows if (score := score_at(row, highest)) is not None] if highest >= 0 else []
    return {
        "number": trial.number,
        "setting": trial.setting,
        "rung": highest,
        "scores": [search.record.score(trial, rung) for rung in range(highest + 1)],
        "half_width": half_width(values),
        "status": FAILED if search.record.failed(trial) else str(rows[0].get("status") or "not run"),
        "reason": next((str(row["reason"]) for row in rows if row.get("reason")), ""),
    }


def _winner(search: Search, winner: Trial) -> dict[str, Any]:
    """Return the winner, its configuration, and its score on the test split, at which nobody has looked before."""
    cell = winner.cells[0]
    row = search.record.row(cell)
    before = (search.record.values.get("result") or {}).get("winner") or {}
    job = JobDir(home() / str(row["job"]))
    if job.predictions("test").is_file():
        test = scores_of(job, "test").get(search.metric)
    else:  # the run's folder was cleared away
        test = before.get("test_score") if before.get("number") == winner.number else None
    return {
        "number": winner.number,
        "setting": winner.setting,
        "score": search.record.score(winner, search.ladder.rungs - 1),
        "half_width": _trial(search, winner)["half_width"],
        "test_score": test,
        "job": row["job"],
        "run_key": row.get("run_key"),
        "config": to_dict(cell.config),
    }


def _confirmation(search: Search) -> dict[str, Any] | None:
    """Return the test scores of the winner and of the plain configuration over other seeds, and their difference."""
    pairs = [
        (search.record.row(best).get("test_score"), search.record.row(plain).get("test_score"))
        for best, plain in search.confirmation()
    ]
    known = [(float(a), float(b)) for a, b in pairs if a is not None and b is not None]
    if not known:
        return None
    return {
        "seeds": [best.seed for best, _ in search.confirmation()][: len(pairs)],
        "best": [a for a, _ in known],
        "plain": [b for _, b in known],
        **_difference([a for a, _ in known], [b for _, b in known], maximize=search.maximize),
    }


def _paired(search: Search, winner: Trial) -> list[dict[str, Any]]:
    """Return how much better the winner is than each other trial, by repetition; empty where nothing is repeated."""

    def scores(trial: Trial) -> list[float]:
        found = [score_at(search.record.row(cell), search.ladder.rungs - 1) for cell in trial.cells]
        return [score for score in found if score is not None]

    ours, found = scores(winner), []
    for trial in search.record.trials:
        others = scores(trial)
        if trial.number != winner.number and 1 < len(others) == len(ours):
            difference = _difference(ours, others, maximize=search.maximize)
            found.append({"number": trial.number, "setting": trial.setting, **difference})
    return found


def _difference(ours: Sequence[float], others: Sequence[float], *, maximize: bool) -> dict[str, Any]:
    """Return the mean of the paired differences (above 0: ours is better), half of its interval, and what that says."""
    apart = [(a - b) if maximize else (b - a) for a, b in zip(ours, others, strict=True)]
    mean, half = float(np.mean(apart)), half_width(apart)
    if half is None or abs(mean) <= half:
        verdict = "no better than seed noise"
    else:
        verdict = "better" if mean > 0 else "worse"
    return {"difference": mean, "difference_half_width": half, "verdict": verdict}


def draw(config: RunConfig, table: "pd.DataFrame") -> str:
    """Return the page; write table and page into the search's folder.

    Raises:
        UserError: they cannot be written.
    """
    store = search_store(search_name(config))
    values = read_record(store) or {}
    write_table(table, store.path)
    page = build_search_page(
        name=search_name(config),
        found=values.get("result") or {},
        space=values.get("space") or {},
        command=taking(config),
    )
    write_file(store.path / PAGE, page.encode())
    return page


def taking(config: RunConfig) -> str:
    """Return the command that runs the winner."""
    return f"python src/run.py pipeline=training search.take={slug(search_name(config))}"


def in_numbers(config: RunConfig) -> dict[str, float]:
    """Return what was found as numbers, for metadata."""
    found = (read_record(search_store(search_name(config))) or {}).get("result") or {}
    winner = found.get("winner") or {}
    numbers = {"trials": len(found["trials"]), "seconds": found["seconds"], "failed": found["failed"]}
    best = {"best_trial": "number", "best_score": "score", "test_score": "test_score"}
    return numbers | {name: winner[key] for name, key in best.items() if winner.get(key) is not None}


def checked_plan(config: RunConfig) -> str:
    """Return what a search is going to do, in words, once it is known that it can.

    Raises:
        ConfigError: a bad design; a budget that is not enough for anything.
        UserError: Optuna is not installed, or what is there is of another search.
    """
    store = search_store(search_name(config))
    search = Search(config, store)
    values = read_record(store)
    if config.search.report_only:
        return ""
    if values is None:
        check_budget(config, store)
    ladder = ladder_of(config.search.halving, config.search.rungs, search.trials)
    rungs = [
        f"{counted(ladder.places(rung, search.trials), 'trial')} to {_upto(ladder, rung)}"
        for rung in range(ladder.rungs)
    ]
    lines = [
        f"search {search.space.name}: {counted(search.trials, 'trial')} by {search.sampler.value}, the best by "
        f"{'most' if search.maximize else 'least'} {search.metric} on the validation split",
        *(f"  {key:<28} {values_}" for key, values_ in search.space.as_text().items()),
        f"rungs: {'; '.join(rungs)}",
        f"confirmation: {config.search.confirm} other seeds, of the best and of the plain configuration",
        f"there already: {counted(len((values or {}).get('trials', [])), 'trial')}, {duration(elapsed(store))} spent",
    ]
    return "\n".join(lines)


def _upto(ladder: Ladder, rung: int) -> str:
    return "the end" if rung == ladder.rungs - 1 else f"1/{ladder.eta ** (ladder.rungs - 1 - rung)} of the steps"


def summary(config: RunConfig) -> tuple[str, str, str]:
    """Return what a person wants to know when the prompt comes back, nothing (no save failed), and why nothing came
    out, where nothing did."""
    store = search_store(search_name(config))
    found = (read_record(store) or {}).get("result") or {}
    metric, rule = found["metric"], "-" * 100
    lines = [rule, *_table_lines(found)]
    best = found["winner"]
    if best is not None:
        score = with_half(number(best["score"]), best["half_width"])
        lines.append(f"  best       trial {best['number']}: {described(best['setting'])}")
        lines.append(f"  score      {metric} {score} on the validation split, which chose it")
        lines.append(f"  test       {metric} {number(best['test_score'])}; the test split chose nothing")
    if found["importance"]:
        shares = ", ".join(f"{key} {percent(share, 0)}" for key, share in found["importance"].items())
        lines.append(f"  matters    {shares} of the variance of the scores (fANOVA)")
    if found["confirmation"]:
        lines.append(f"  confirmed  {confirmed(found)}")
    failed = [one for one in found["trials"] if one["status"] == FAILED]
    lines += [f"  trial {one['number']} failed: {one['reason']}" for one in failed[:5]]
    lines.append(f"  page       {store.path / PAGE}")
    lines.append(f"  table      {store.path / CSV}")
    if best is not None:
        lines.append(f"  take it    {taking(config)}")
    first = next((one["reason"] for one in found["trials"] if one["reason"]), found["stopped"])
    nothing = "" if any(one["rung"] >= 0 for one in found["trials"]) else f"no trial came to a rung; the first: {first}"
    return "\n".join([*lines, rule, spent_line(found)]), "", nothing


def confirmed(found: Mapping[str, Any]) -> str:
    """Return the honest comparison in a sentence."""
    one, metric = found["confirmation"], found["metric"]
    difference = with_half(number(one["difference"]), one["difference_half_width"])
    best, plain = (number(float(np.mean(one[which]))) for which in ("best", "plain"))
    return (
        f"over {counted(len(one['best']), 'other seed')} the test {metric} is {best}, that of the plain configuration "
        f"{plain}: difference {difference}, {one['verdict']}"
    )


def spent_line(found: Mapping[str, Any]) -> str:
    """Return what was spent, what is left, and what was not tried."""
    seconds, price, allowed = found["seconds"], found["usd_per_hour"], found["allowed_seconds"]

    def both(of: float) -> str:
        return duration(of) + (f" ({dollars(of / 3600 * price)})" if price else "")

    untried = f"not tried: {counted(found['untried'], 'trial')}" if found["untried"] else "nothing was left untried"
    why = f" ({found['stopped']})" if found["stopped"] else ""
    paid = found["usd"]
    if paid is not None:
        line = f"spent {dollars(paid)} of {dollars(found['max_usd'])} on machines, in {duration(seconds)}"
        return f"{line}; {untried}{why}"
    left = "no limit" if allowed is None else f"{both(max(0.0, allowed - seconds))} left"
    return f"spent {both(seconds)}; {left}; {untried}{why}"


def _table_lines(found: Mapping[str, Any], most: int = 10) -> list[str]:
    """Return the best trials as lines, those of the highest rungs first."""
    trials, keys = ranked(found)
    trials = [one for one in trials if one["rung"] >= 0]
    rows = [["trial", "rung", found["metric"], *keys]]
    for one in trials[:most]:
        setting = [shown(one["setting"][key]) if key in one["setting"] else "" for key in keys]
        rows.append(
            [str(one["number"]), f"{one['rung'] + 1}/{len(found['rungs'])}", number(one["scores"][-1]), *setting]
        )
    lines = columns(rows, ">")
    return [*lines, f"... and {len(trials) - most} more in the table"] if len(trials) > most else lines


def taken(name: str) -> dict[str, Any]:
    """Return the whole configuration of a search's best settings, as plain values.

    Raises:
        UserError: no such search, or one without a winner.
    """
    store = search_store(name)
    values = read_record(store)
    if values is None:
        there = sorted(path.parent.name for path in store.path.parent.glob("*/search.json"))
        raise UserError(
            f"search.take={name}: there is no search in {store.path} "
            f"({'searches here: ' + ', '.join(there) if there else 'none has run here'})"
        )
    winner = (values.get("result") or {}).get("winner")
    if winner is None:
        raise UserError(f"search.take={name}: no trial has come to its end yet; run pipeline=search to its end first")
    config: dict[str, Any] = winner["config"]
    return config
