"""From a configuration to the table and the page: what the steps call."""

import logging
from typing import TYPE_CHECKING

from ..common.text import MISSING, counted, duration, number
from ..config import RunConfig, UserError, to_dict
from ..pricing.cost import dollars, spent, spent_in_all
from ..pricing.prices import Price
from ..report.experiment import build_experiment_page
from ..report.results import write_file
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
    write_table(table, folder)  # first: what was measured is worth more than how it looks
    page = build_experiment_page(
        name=name, rows=records(table), design=to_dict(design), planned=planned, note=design.note
    )
    write_file(folder / PAGE, page.encode())
    return page


def in_numbers(table: "pd.DataFrame") -> dict[str, float]:
    """Return how many cells there are, by status, and what they cost, for metadata; what is unknown is left out."""
    found: dict[str, float] = {"cells": len(table)}
    found |= {status: int((table["status"] == status).sum()) for status in ("done", "failed", "stopped")}
    usd, _ = spent_in_all(records(table))
    return found if usd is None else {**found, "usd": round(usd, 6)}


def summary(config: RunConfig, table: "pd.DataFrame") -> str:
    """Return what a person wants to know when the prompt comes back."""
    rows, folder = records(table), ResultsStore(experiment_name(config)).path
    lines = [f"{'cell':<58} {'status':<8} {'time':>13} {'accuracy':>9} {'cost':>9}"]
    for row in rows:
        levels = ", ".join(f"{k.removeprefix('factor_')} {v}" for k, v in row.items() if k.startswith("factor_"))
        told = f"{levels}, seed {row['seed']}"
        lines.append(
            f"{told[:58]:<58} {row['status']:<8} {duration(row['total_s']):>13} "
            f"{number(row['accuracy']):>9} {dollars(spent(row)):>9}"
        )
    ended = [row for row in rows if row["status"] != "done"]
    reasons = [f"  {row['cell']}: {row['reason']}" for row in ended]
    if any(row["status"] == "failed" for row in ended):
        reasons.append("  benchmark.retry_failed=true runs the failed ones again")
    usd, unknown = spent_in_all(rows)
    left_out = f" ({counted(unknown, 'cell')} without a known price not counted)" if unknown else ""
    total = f"{MISSING} (no price known)" if usd is None else dollars(usd) + left_out
    rule = "-" * 100
    places = [f"  page   {folder / PAGE}", f"  table  {folder / CSV}"]
    return "\n".join([rule, *lines, *reasons, f"  cost   {total}", *places, rule])


def _free(_: object) -> Price:
    """No price is asked for where nothing is run."""
    return Price(None, "")
