"""Takes a job that was run by hand in as the result of a cell: its job directory, from this machine or another."""

from pathlib import Path
from typing import Any

from ..config import RunConfig, UserError, to_dict
from ..job import JobDir
from ..launch.runs import decisive
from ..report.cost import Attempt, recorded
from .cells import Cell
from .plan import Planned, make_plan
from .rows import done_row
from .store import ResultsStore


def adopt(config: RunConfig) -> dict[str, Any]:
    """Take in what `benchmark.adopt=CELL:JOB` names; return its row, marked as adopted.

    Raises:
        UserError: no such cell, no finished job there, or a job that trained something else than the cell.
    """
    said, _, place = config.benchmark.adopt.partition(":")
    plan = make_plan(config)
    planned = next((one for one in plan.cells if one.cell.name == said), None)
    if planned is None:
        names = ", ".join(one.cell.name for one in plan.cells[:5])
        raise UserError(f"benchmark.adopt={said}: no such cell; benchmark.dry_run=true lists them ({names}, ...)")
    job = JobDir(Path(place).expanduser())
    result = job.read_result()
    if result is None or result.get("status") != "completed":
        raise UserError(f"benchmark.adopt: {job.root} holds no finished job (outputs/result.json)")
    _compare(planned.cell, job, result)
    row = {**done_row(plan.name, planned.cell, job, result, _attempts(planned, job, result)), "origin": "adopted"}
    with ResultsStore(plan.name).claimed() as store:
        store.write(planned.cell.name, row)
    return row


def _compare(cell: Cell, job: JobDir, result: dict[str, Any]) -> None:
    """Refuse a job that does not answer the cell's question.

    Raises:
        UserError: by the key that differs.
    """
    written = job.read_job().config
    wanted, found = decisive(cell.config), decisive(written)
    wanted["data"], found["data"] = to_dict(cell.config.data), to_dict(written.data)
    other = _differences(found, wanted)
    if result.get("world_size") != cell.devices:
        other.append(f"{result.get('world_size')} devices, the cell has {cell.devices}")
    if other:
        more = f" (and {len(other) - 3} more)" if len(other) > 3 else ""
        raise UserError(f"benchmark.adopt: {job.root} is not cell {cell.name}: {'; '.join(other[:3])}{more}")


def _differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> list[str]:
    told: list[str] = []
    for key in sorted({*found, *wanted}):
        a, b = found.get(key), wanted.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            told += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            told.append(f"{prefix}{key}={a}, the cell has {b}")
    return told


def _attempts(planned: Planned, job: JobDir, result: dict[str, Any]) -> list[Attempt]:
    """Return what was paid: as a launcher recorded it, else all seconds that the job says it took, at the design's
    price."""
    seconds = (result.get("spent") or {}).get("wall_s") or sum((result.get("phases") or {}).values())
    machine = planned.cell.machine
    price = planned.price
    alone = Attempt(
        {"wall_s": float(seconds)}, price.usd_per_hour, machine.nodes, machine.priced, "adopted", price.source
    )
    return recorded(job.root) or [alone]
