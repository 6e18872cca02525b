"""From a configuration to the table and the page: what the steps call."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import RunConfig, UserError, to_dict
from ..launch.prices import Price
from ..report.cost import dollars
from ..report.experiment import build_experiment_page
from ..report.text import MISSING, duration, number
from .adopting import adopt
from .plan import experiment_name, make_plan
from .running import Launchers, run_experiment, stored_rows
from .store import ResultsStore
from .table import CSV, frame, records, write_table

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PAGE = "report.html"


def results(config: RunConfig, launchers: Launchers | None = None) -> "pd.DataFrame":
    """Return the table of an experiment: run what has no result, or (`report_only`, `adopt`) take what is there.

    Raises:
        UserError: see `run_experiment` and `adopt`; nothing is there to be drawn.
    """
    design = config.benchmark
    if design.adopt:
        row = adopt(config)
        log.info("adopted %s as the result of cell %s", row["job"], row["cell"])
    if design.adopt or design.report_only:
        plan = make_plan(config, prices=_free)
        rows = stored_rows(plan, ResultsStore(plan.name))
        if not rows:
            raise UserError(
                f"benchmark.report_only: no cell of this design has a result in {ResultsStore(plan.name).path}"
            )
    else:
        rows = run_experiment(config, launchers)
    return frame(rows)


def draw(config: RunConfig, table: "pd.DataFrame") -> str:
    """Return the page of a table; write both into the experiment's folder.

    Raises:
        UserError: they cannot be written.
    """
    name = experiment_name(config)
    folder = ResultsStore(name).path
    planned = make_plan(config, prices=_free).planned_rows()
    design = config.benchmark
    page = build_experiment_page(
        name=name, rows=records(table), design=to_dict(design), planned=planned, note=design.note
    )
    write_table(table, folder)
    write_page(page, folder / PAGE)
    return page


def in_numbers(table: "pd.DataFrame") -> dict[str, float]:
    """Return how many cells there are, by status, and what they cost, for metadata; what is unknown is left out."""
    found: dict[str, float] = {"cells": len(table)}
    found |= {status: int((table["status"] == status).sum()) for status in ("done", "failed", "stopped")}
    usd = table["usd_total"].dropna()
    return {**found, "usd": round(float(usd.sum()), 6)} if len(usd) else found


def write_page(page: str, path: Path) -> None:
    """Write the page where a browser opens it.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def summary(config: RunConfig, table: "pd.DataFrame") -> str:
    """Return what a person wants to know when the prompt comes back."""
    rows, folder = records(table), ResultsStore(experiment_name(config)).path
    lines = [f"{'cell':<58} {'status':<8} {'time':>13} {'accuracy':>9} {'cost':>9}"]
    for row in rows:
        levels = ", ".join(f"{k.removeprefix('factor_')} {v}" for k, v in row.items() if k.startswith("factor_"))
        told = f"{levels}, seed {row['seed']}"
        lines.append(
            f"{told[:58]:<58} {row['status']:<8} {duration(row['total_s']):>13} "
            f"{number(row['accuracy']):>9} {dollars(row['usd_total']):>9}"
        )
    ended = [row for row in rows if row["status"] != "done"]
    reasons = [f"  {row['cell']}: {row['reason']}" for row in ended]
    if any(row["status"] == "failed" for row in ended):
        reasons.append("  benchmark.retry_failed=true runs the failed ones again")
    usd = [row["usd_total"] for row in rows if row["usd_total"] is not None]
    total = f"{dollars(sum(usd))}" if usd else f"{MISSING} (no price known)"
    rule = "-" * 100
    places = [f"  page   {folder / PAGE}", f"  table  {folder / CSV}"]
    return "\n".join([rule, *lines, *reasons, f"  cost   {total}", *places, rule])


def _free(_: object) -> Price:
    """No price is asked for where nothing is run."""
    return Price(None, "")
