"""From a configuration to the table and the page: what the steps call. A job that was run by hand is taken in as the
result of a cell."""

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.mappings import flatten
from ..common.text import MISSING, counted, duration, number
from ..config import RunConfig, UserError, to_dict
from ..job import JobDir
from ..launch.run_dir import identity_config
from ..launch.run_job import data_hash
from ..pricing.cost import Attempt, dollars, recorded, spent, spent_in_all
from ..pricing.prices import Price
from ..report.scoring import write_file
from ..tasks.prepared import prepared
from .cells import Cell
from .dataset_cache import DATA, MODEL, model_print
from .plan import Planned, experiment_name, make_plan
from .report import build_experiment_page
from .runner import Launchers, run_experiment, stored_rows
from .store import ResultsStore
from .table import CSV, SPLIT, done_row, frame, records, write_table

if TYPE_CHECKING:
    import pandas as pd


log = logging.getLogger(__name__)

PAGE = "report.html"


def results(config: RunConfig, launchers: Launchers | None = None) -> "pd.DataFrame":
    """Return the table of an experiment: run what has no result, or (`report_only`, `adopt`) take what is there.

    Raises:
        UserError: see `run_experiment` and `adopt`; nothing is there to be drawn.
    """
    design = config.study
    if design.adopt:
        row = adopt(config)
        log.info("adopted %s as the result of cell %s", row["job"], row["cell"])
    if design.adopt or design.report_only:
        plan = make_plan(config, prices=_free)
        rows = stored_rows(plan, ResultsStore(plan.name))
        if not rows:
            raise UserError(f"study.report_only: no cell of this design has a result in {ResultsStore(plan.name).path}")
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
    design = config.study
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
        reasons.append("  study.retry_failed=true runs the failed ones again")
    usd, unknown = spent_in_all(rows)
    left_out = f" ({counted(unknown, 'cell')} without a known price not counted)" if unknown else ""
    total = f"{MISSING} (no price known)" if usd is None else dollars(usd) + left_out
    rule = "-" * 100
    places = [f"  page   {folder / PAGE}", f"  table  {folder / CSV}"]
    return "\n".join([rule, *lines, *reasons, f"  cost   {total}", *places, rule])


def _free(_: object) -> Price:
    """No price is asked for where nothing is run."""
    return Price(None, "")


def adopt(config: RunConfig) -> dict[str, Any]:
    """Take in what `study.adopt=CELL:JOB` names; return its row, marked as adopted.

    Raises:
        UserError: no such cell, one that this study has run itself, no finished job there, or a job that trained or
            scored something else than the cell.
    """
    name, _, place = config.study.adopt.partition(":")
    plan = make_plan(config)
    planned = next((one for one in plan.cells if name in (one.cell.name, one.cell.id)), None)
    if planned is None:
        names = ", ".join(one.cell.id for one in plan.cells[:5])
        raise UserError(f"study.adopt={name}: no such cell; study.dry_run=true lists them ({names}, ...)")
    if planned.row is not None and planned.row.get("status") == "done" and planned.row.get("origin") == "run":
        raise UserError(f"study.adopt={name}: this cell has been run by the study; its row stays")
    job = JobDir(Path(place).expanduser())
    result = job.read_result()
    if result is None or result.get("status") != "completed":
        raise UserError(f"study.adopt: {job.root} holds no finished job (outputs/result.json)")
    _compare(planned.cell, job, result)
    fingerprint = _compare_rows(config, planned.cell, job)
    row = {**done_row(plan.name, planned.cell, job, result, _attempts(planned, job, result)), "origin": "adopted"}
    with ResultsStore(plan.name).claimed() as store:
        store.write(planned.cell.name, {**row, DATA: fingerprint, MODEL: model_print(planned.cell.config)})
    return row


def _compare(cell: Cell, job: JobDir, result: dict[str, Any]) -> None:
    """Refuse a job that does not answer the cell's question.

    Raises:
        UserError: by the key that differs.
    """
    written = job.job.config
    wanted, found = identity_config(cell.config), identity_config(written)
    for values, config in ((wanted, cell.config), (found, written)):
        values["data"] = {key: value for key, value in to_dict(config.data).items() if key != "seed"}
    other = _differences(found, wanted)
    if result.get("world_size") != cell.devices:
        other.append(f"{result.get('world_size')} devices, the cell has {cell.devices}")
    device = str(result.get("device") or "nothing known")
    if not cell.machine.local and not _is_of(device, cell.machine.accelerator):
        other.append(f"it ran on {device}, the cell's {cell.machine.instance} has {cell.machine.accelerator}")
    if other:
        more = f" (and {len(other) - 3} more)" if len(other) > 3 else ""
        raise UserError(f"study.adopt: {job.root} is not cell {cell.name}: {'; '.join(other[:3])}{more}")


def _is_of(device: str, accelerator: str) -> bool:
    """Return whether torch's name of a device (`cuda NVIDIA A10G`) is that of an accelerator (`A100-80GB`: `A100`)."""
    name = accelerator.partition("-")[0]
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", device, re.IGNORECASE) is not None


def _compare_rows(config: RunConfig, cell: Cell, job: JobDir) -> str:
    """Refuse a job with other rows than the experiment's cells; return the fingerprint of its data.

    Raises:
        UserError: the job trained on other rows, or was scored on others.
    """
    found = prepared(cell.config, config.seed)
    trained = {"train": found.train, SPLIT: found.validation}
    by_hand = {**trained, **found.sets, "test": found.test}
    if job.job.fingerprints.get("data") not in (data_hash(by_hand), data_hash(trained)):
        raise UserError(
            f"study.adopt: {job.root} has other rows than the cells of this experiment, whose data are cut by seed "
            f"{config.seed}: run the job with data.seed={config.seed}"
        )
    return found.fingerprint


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    a, b = flatten(found), flatten(wanted)
    return [f"{key}={a.get(key)}, the cell has {b.get(key)}" for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def _attempts(planned: Planned, job: JobDir, result: dict[str, Any]) -> list[Attempt]:
    """Return what was paid: as a launcher recorded it, else all seconds that the job says it took, at the design's
    price."""
    seconds = (result.get("spent") or {}).get("wall_s") or sum((result.get("phases") or {}).values())
    machine = planned.cell.machine
    price = planned.price
    alone = Attempt(
        phases={"wall_s": float(seconds)},
        hourly_usd=price.hourly(machine.nodes),
        nodes=machine.nodes,
        machine=machine.priced,
        ended="adopted",
        source=price.source,
    )
    return recorded(job.root) or [alone]
