"""Runs the cells of an experiment: at most `study.parallel` at once, each in a job directory of its own, each
written down as soon as it has ended. What is finished is never run again; what was killed goes on from its
checkpoint."""

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any

from ..common.text import duration
from ..config import RunConfig
from ..config.folders import home
from ..config.schema.sagemaker import PREFIX
from ..data import Prepared
from ..launch import Launcher, LocalLauncher, SkyPilotLauncher, train
from ..launch.remote.machine import ROLE, STORE
from ..launch.run_job import JobResult
from ..launch.skypilot.messages import require
from ..pricing.cost import dollars
from .cell_runner import CellRunner, Watch
from .crew import Crew
from .dataset_cache import Splits, alike, forget_stale
from .machines import Machine
from .plan import Plan, Planned, Prices, asked, make_plan
from .store import ResultsStore
from .table import SPLIT

log = logging.getLogger(__name__)

Launchers = Callable[[Machine], Launcher]


def run_experiment(
    config: RunConfig, launchers: Launchers | None = None, prices: Prices | None = None
) -> list[dict[str, Any]]:
    """Run the cells that have no result yet; return the rows of all that have one, in the design's order.

    Args:
        launchers: where a machine's worker processes run; see `launcher_of` if not given.
        prices: see `make_plan`.

    Raises:
        ConfigError: a bad design; more than the budget.
        UserError: data or a machine's launcher cannot be had; another process runs this experiment.
        Preempted: told to end; the same command goes on.
    """
    prices = functools.cache(prices or asked(config))
    plan = make_plan(config, prices=prices)
    plan.check()
    with ResultsStore(plan.name).claimed() as store:
        plan = make_plan(config, store, prices)  # what another process has finished meanwhile
        forget_stale(plan.cells, store)
        plan = make_plan(config, store, prices)
        find = launchers or launcher_of
        for machine in {planned.cell.machine for planned in plan.todo}:
            find(machine)
        log.info(
            "experiment %s: %d of %d cells to run; results in %s",
            plan.name,
            len(plan.todo),
            len(plan.cells),
            store.path,
        )
        with Watch(store, config.study.max_usd, plan.spent) as watch:
            Runner(plan, store, watch, find).run()
    return stored_rows(plan, store)


def stored_rows(plan: Plan, store: ResultsStore) -> list[dict[str, Any]]:
    """Return the rows that are there, in the design's order."""
    found = store.read()
    return [found[planned.cell.name] for planned in plan.cells if planned.cell.name in found]


def launcher_of(machine: Machine, store: str | None = None, role: str | None = None) -> Launcher:
    """Return the launcher of a machine: this one's, or SageMaker's or SkyPilot's, which brings it.

    Args:
        store: where the checkpoints of cells on machines go that are brought, unless the design names another; the
            stack's.
        role: the stack's, of SageMaker's jobs.

    Raises:
        UserError: SkyPilot is not installed.
    """
    if machine.local:
        return LocalLauncher()
    stack = {STORE: store} if store else {}
    if machine.instance.startswith(PREFIX):
        from ..aws.sagemaker import launcher

        return launcher({**stack, ROLE: role} if role else stack)
    require()
    return SkyPilotLauncher(stack)


class Runner(CellRunner):
    """The cells of a plan that have to be run."""

    def __init__(self, plan: Plan, store: ResultsStore, watch: Watch, launchers: Launchers) -> None:
        splits = Splits(plan.config.seed, keep=2 + plan.config.study.parallel)
        super().__init__(plan.name, store, watch, splits, alike([planned.cell for planned in plan.cells]))
        self.plan, self.launchers = plan, launchers
        self._lock = Lock()
        self._done = 0

    def run(self) -> None:
        """Run all cells that have to be run."""
        with Crew(self._cell, self.watch.stop, self.plan.config.study.parallel, "cell") as crew:
            for planned in self.plan.todo:
                crew.start(planned)
            crew.wait()

    def launching(self, planned: Planned) -> AbstractContextManager[Launcher]:
        """See `CellRunner`."""
        return nullcontext(self.launchers(planned.cell.machine))

    def train(self, planned: Planned, config: RunConfig, prepared: Prepared, launcher: Launcher) -> JobResult:
        """See `CellRunner`."""
        named = replace(config, name=f"{self.plan.name}-{planned.cell.id}")
        return train(named, prepared.train, {SPLIT: prepared.validation}, prepared.tokenizer, launcher=launcher)

    def _cell(self, planned: Planned) -> None:
        """Run a cell and write its row."""
        row = self.run_cell(planned)
        self._write(planned, row)
        if row["status"] == "done" and not self.plan.config.study.keep_models:
            for weights in (home() / row["job"]).glob("outputs/model/*.safetensors"):
                weights.unlink()

    def _write(self, planned: Planned, row: dict[str, Any]) -> None:
        self.store.write(planned.cell.name, row)
        with self._lock:
            self._done += 1
            done = self._done
        what = row["status"] if row["status"] == "done" else f"{row['status']}: {row['reason']}"
        facts = [what]
        if row.get("total_s"):
            facts.append(duration(row["total_s"]))
        if row.get("accuracy") is not None:
            facts.append(f"accuracy {row['accuracy']:.3f}")
        if row.get("usd_total") is not None:
            facts.append(dollars(row["usd_total"]))
        cell = planned.cell
        log.info("cell %d of %d (%s, seed %d): %s", done, len(self.plan.todo), cell.label, cell.seed, ", ".join(facts))
