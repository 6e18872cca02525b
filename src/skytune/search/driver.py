"""Runs a search: draws trials, trains them to their rungs, lets the best go on, confirms the winner.

What is in the table is never run again; whatever is killed, driver or workers, goes on from its checkpoint with the
next start. Which trials are drawn and which go on depends on scores alone, never on time (without
`search.asynchronous`).
"""

import functools
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..common.text import counted, number
from ..config import ConfigError, RunConfig, UserError, WorkerError
from ..config.folders import home
from ..data.order import SampleOrder
from ..launch import Launcher, train
from ..launch.run_job import JobResult
from ..pricing.cost import Attempt, Cost
from ..pricing.prices import Price
from ..study.cell_runner import CellRunner, Watch
from ..study.cells import Cell
from ..study.crew import Crew
from ..study.dataset_cache import Splits, forget_stale
from ..study.plan import Forecast, Planned
from ..study.store import ResultsStore, attempts_of
from ..study.table import SPLIT, done_row, ended_row
from .budget import allowed_seconds, check_budget, elapsed, limit
from .ladder import Ladder, best, ladder_of, promotable
from .machines import Machines, check_machines, spent
from .metric import metric_of, scores_of
from .proposer import Proposer, TrialScore, check_sampler
from .record import DONE, FAILED, PAUSED, SearchTable, Trial, score_at, search_store
from .slots import Leg, Slots
from .space import REPETITIONS, SEED, described, sampler_of, space_of, trials_of

log = logging.getLogger(__name__)

LOST = "lost"
"""Status of a cell whose workers were killed: it goes on."""


class Search:
    """One search from its first trial to its result.

    Args:
        config: the whole configuration, with `search`.
        launcher: makes what runs the workers of one trial; see `Slots` if not given.
        stack: what the active stack brings machines with, for `search.machines`; None where no trial is to run.
    """

    def __init__(
        self,
        config: RunConfig,
        store: ResultsStore,
        launcher: Callable[[], Launcher] | None = None,
        stack: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.design, self.store = config, config.search, store
        self.space = space_of(config)
        self.trials = trials_of(config, self.space)
        self.sampler = sampler_of(config, self.space, self.trials)
        check_sampler(self.space, self.sampler)
        self.metric, self.maximize = metric_of(config)
        self.record = SearchTable(store, self.space)
        self.launcher = launcher
        self.price = Price(config.compute.usd_per_hour, "compute.usd_per_hour")
        self.machines: Machines | None = None
        if config.search.machines:
            check_machines(config)
            if stack is not None:
                self.machines = Machines(config, stack)
                self.price, self.launcher = self.machines.price, launcher or self.machines.launcher
        self._begun = False
        self.stopped = ""
        """Why nothing more is begun."""

    @property
    def ladder(self) -> Ladder:
        """The rungs."""
        return self.record.ladder

    def run(self) -> None:
        """Run what has no result yet.

        Raises:
            UserError: nothing could run.
            Preempted: told to end; the same command goes on.
        """
        self.record.open(ladder_of(self.design.halving, self.design.rungs, self.trials), self.trials)
        self._forget_stale()
        allowed = allowed_seconds(self.config)
        deadline = None if allowed is None else time.monotonic() + allowed - elapsed(self.store)
        with ExitStack() as stack:
            money = self.design.max_usd if self.machines else None  # of this machine it is time
            watch = stack.enter_context(Watch(self.store, money, self.spent() or 0.0, deadline, limit(self.config)))
            if self.machines:
                self.machines.open(watch)
                stack.callback(self.machines.close)
            self.slots = stack.enter_context(Slots(self.config, self.launcher))
            runner = TrialRunner(self, watch, self.slots)
            self.crew = stack.enter_context(Crew(runner.run_leg, watch.stop, self.design.at_once, "trial"))
            if self.design.asynchronous:
                self._run_ahead()
            else:
                self._run_rungs()
            if not self.stopped:
                self._confirm()
        if not self.design.keep_checkpoints and not self.stopped:
            self._drop_checkpoints()

    # ------------------------------------------------------------------ rungs

    def _run_rungs(self) -> None:
        """Every rung for all trials that belong on it, then the next one."""
        self._draw()
        for rung in range(1, self.ladder.rungs):
            if self.stopped:
                return
            going = best(self.record.standing(rung - 1), self.ladder.places(rung, self.trials), maximize=self.maximize)
            if self.machines:
                self.machines.shrink(max(len(going) * len(self.space.repetitions), 2 * self.design.confirm))
            for trial in (self.record.trial(number_) for number_ in sorted(going)):
                self._start(trial, rung)
            self.crew.wait()

    def _draw(self) -> None:
        """Draw the trials, each from the scores of those that began `search.parallel` before it, and train each up to
        the first rung."""
        proposer, lag = self._proposer(), self.design.at_once
        for index in range(self.trials):
            visible = self.record.trials[: max(0, index - lag + 1)]
            seen = {trial.number for trial in visible}
            self.crew.wait(lambda leg, seen=seen: leg.trial in seen)  # type: ignore[misc]
            if self.stopped:
                break
            proposer.tell([self._told(trial) for trial in visible])
            trial = self._next(proposer, index)
            if trial is None:
                log.info("the space holds no further setting: %s", counted(index, "trial"))
                self.trials = index
                break
            self._start(trial, 0)
        self.crew.wait()

    def _next(self, proposer: Proposer, index: int) -> Trial | None:
        """Return a trial of the table, or a new one; None where there is no new setting."""
        known = self.record.trials[index] if index < len(self.record.trials) else None
        setting = proposer.propose([trial.setting for trial in self.record.trials[:index]])
        if known is not None:
            if setting != known.setting:
                proposer.put(known.setting, instead=setting is not None)
            return known
        if setting is None:
            return None
        if not self._begun:
            self._check_budget()  # before it is written down
        return self.record.add(setting)

    def _run_ahead(self) -> None:
        """Whatever may go on goes on; else a new trial begins."""
        proposer, asked = self._proposer(), 0
        while not self.stopped:
            standing = [self.record.standing(rung) for rung in range(self.ladder.rungs)]
            busy = [(leg.trial, leg.rung) for leg in self.crew.busy]
            for rung, here in enumerate(standing):  # a trial on its way to a rung is promoted already
                failed = [trial.number for trial in self.record.trials if self.record.failed(trial)]
                for number_ in [*(trial for trial, to in busy if to == rung), *failed]:
                    here.setdefault(number_, None)
            going = promotable(standing, self.ladder.eta, maximize=self.maximize)
            if going is not None:
                self._start(self.record.trial(going[0]), going[1])
            elif asked < self.trials:
                proposer.tell([self._told(trial) for trial in self.record.trials[:asked]])
                trial = self._next(proposer, asked)
                if trial is None:
                    self.trials = asked
                    continue
                asked += 1
                self._start(trial, 0)
            elif not busy:
                break
            else:
                self.crew.wait_one()
                continue
            self.crew.wait_free()
        self.crew.wait()

    def _proposer(self) -> Proposer:
        return Proposer(self.space, self.sampler, self.record.planned, self.config.seed, maximize=self.maximize)

    def _told(self, trial: Trial) -> TrialScore:
        return TrialScore(trial.setting, self.record.score(trial, 0))

    def _start(self, trial: Trial, rung: int) -> None:
        """Have every cell of a trial train up to a rung, unless it has."""
        for cell in trial.cells:
            if self.record.row(cell).get("status") != FAILED and score_at(self.record.row(cell), rung) is None:
                self._begin(self._leg(cell, trial.number, rung))

    def _check_budget(self) -> None:
        check_budget(self.config, self.store)
        if self.machines is not None:
            self.machines.check_budget(self.spent() or 0.0)

    def _begin(self, leg: Leg) -> None:
        if not self._begun:
            self._check_budget()
            self._begun = True
            self.slots.warm_up()
        self.crew.start(leg)

    def _leg(self, cell: Cell, trial: int, rung: int) -> Leg:
        row = self.record.rows.get(cell.name)
        spent = Cost(attempts_of(self.store, cell, self.price)).usd or 0.0
        stop_at = functools.partial(self.ladder.stop_at, rung)
        setting = {key: value for key, value in cell.levels.items() if key not in REPETITIONS}
        return Leg(
            cell,
            self.price,
            Forecast(self._expected(rung)),
            row,
            spent,
            trial=trial,
            setting=setting,
            rung=rung,
            stop_at=stop_at,
        )

    def _expected(self, rung: int) -> float | None:
        """Return the longest that a cell has taken to a rung, or by the one below it; None before there is one."""
        longest: dict[int, float] = {}
        for name, row in self.record.rows.items():
            starts = self.store.starts(name) if row.get("scores") else []
            if starts:
                at = len(row["scores"]) - 1
                longest[at] = max(longest.get(at, 0.0), starts[-1]["seen"] - starts[-1]["began"])
        if rung in longest:
            return longest[rung]
        return longest[rung - 1] * self.ladder.eta if rung - 1 in longest else None

    # ------------------------------------------------------------------ result

    def winner(self) -> Trial | None:
        """Return the best trial of those that trained to their end; None before there is one."""
        found = best(self.record.standing(self.ladder.rungs - 1), 1, maximize=self.maximize)
        return self.record.trial(found[0]) if found else None

    def _confirm(self) -> None:
        """Train the winner and the plain configuration with other seeds."""
        for cell in (cell for pair in self.confirmation() for cell in pair):
            if self.stopped:
                return
            if self.record.row(cell).get("status") not in (DONE, FAILED):
                self._begin(self._leg(cell, -1, self.ladder.rungs - 1))
        self.crew.wait()

    def confirmation(self) -> list[tuple[Cell, Cell]]:
        """Return the cells of the winner and of the plain configuration, by pairs of one seed; none where there is
        nothing to confirm."""
        winner = self.winner()
        if winner is None or not winner.setting or not self.design.confirm:
            return []
        first = {key: value for key, value in self.space.repetitions[0].items() if key != SEED}
        used = {self.config.seed, *(again.get(SEED) for again in self.space.repetitions)}
        seeds = [seed for seed in range(self.config.seed + 1, self.config.seed + 1 + self.design.confirm + len(used))]
        seeds = [seed for seed in seeds if seed not in used][: self.design.confirm]
        again = [{**first, SEED: seed} for seed in seeds]
        return list(zip(self.space.cells(winner.setting, again), self.space.cells({}, again), strict=True))

    def _cells(self) -> list[tuple[Cell, int]]:
        """Return all cells with their trials, -1 for those of the confirmation."""
        pairs = [(cell, trial.number) for trial in self.record.trials for cell in trial.cells]
        return pairs + [(cell, -1) for pair in self.confirmation() for cell in pair]

    def spent(self) -> float | None:
        """Return the dollars of all trials on machines so far; None where this machine runs them: it is time that it
        costs."""
        return spent(self.store, (cell for cell, _ in self._cells()), self.price) if self.design.machines else None

    def _forget_stale(self) -> None:
        """Take back the rows of cells whose data or initial model have changed since."""
        pairs = self._cells()
        before = set(self.record.rows)
        forget_stale([self._leg(cell, trial, 0) for cell, trial in pairs], self.store)
        if self.design.retry_failed:
            for cell, _ in pairs:
                if self.record.row(cell).get("status") == FAILED:
                    self.store.forget(cell.name)
        self.record.rows = self.store.read()
        if before - set(self.record.rows):
            self.record.save(result=None)

    def _drop_checkpoints(self) -> None:
        for cell in (cell for trial in self.record.trials for cell in trial.cells):
            row = self.record.row(cell)
            if row.get("status") == PAUSED and row.get("job"):
                shutil.rmtree(home() / row["job"] / "checkpoints", ignore_errors=True)


class TrialRunner(CellRunner):
    """Runs legs of trials."""

    def __init__(self, search: Search, watch: Watch, slots: Slots) -> None:
        keep = 1 + search.design.at_once + len(search.space.repetitions)
        super().__init__(search.space.name, search.store, watch, Splits(search.config.seed, keep=keep), same_data=True)
        self.search, self.slots = search, slots

    def run_leg(self, leg: Leg) -> None:
        """Run a leg to its rung; again where its workers were killed."""
        row = self.run_cell(leg)
        while row["status"] == LOST and self._lost(leg) <= self.search.design.retries:
            log.warning("%s: %s; it goes on from its checkpoint", _name(leg), row["reason"])
            row = self.run_cell(leg)
        if row["status"] == LOST:
            row["status"] = FAILED
        if row["status"] == "stopped":
            self.search.stopped = self.search.stopped or str(row["reason"])
        before = self.search.record.row(leg.cell).get("scores") or []  # those of the rungs before
        row = {"scores": before, **row, "trial": leg.trial}
        self.search.record.write(leg.cell, row)
        self._log_row(leg, row)
        if row["status"] == DONE and not self.search.design.keep_models:
            self._drop_models(leg)

    def _lost(self, leg: Leg) -> int:
        """Return how often in a row the workers of a cell were killed, earlier starts of the search included."""
        found = 0
        for start in reversed(self.store.starts(leg.cell.name)):
            if start.get("ended") != LOST:
                break
            found += 1
        return found

    def launching(self, planned: Planned) -> Any:
        """See `CellRunner`: a share of this machine."""
        return self.slots.take()

    def train(self, planned: Planned, config: RunConfig, prepared: Any, launcher: Launcher) -> JobResult:
        """See `CellRunner`: with all splits, as an ordinary run has them, so that it is the same run."""
        assert isinstance(planned, Leg)
        evaluation = {SPLIT: prepared.validation, **prepared.sets, "test": prepared.test}
        return train(
            config,
            prepared.train,
            evaluation,
            prepared.tokenizer,
            launcher=launcher,
            since=self.search.record.values["began"],
            announce=False,
            stop_at_step=planned.stop_at(steps_of(config, len(prepared.train))),
        )

    def row_of(self, planned: Planned, outcome: JobResult, attempts: list[Attempt]) -> dict[str, Any]:
        """See `CellRunner`: with the scores by rung."""
        assert isinstance(planned, Leg)
        cell, result, search = planned.cell, outcome.result, self.search
        before = list((search.record.row(cell).get("scores") or [])[: planned.rung])
        if result["status"] == PAUSED:
            row = ended_row(self.name, cell, PAUSED, None, attempts, outcome.job)
            metrics = result["paused"]["metrics"]
        else:
            row = done_row(self.name, cell, outcome.job, result, attempts)
            metrics = scores_of(outcome.job, SPLIT)
            if planned.trial < 0:
                row["test_score"] = scores_of(outcome.job, "test").get(search.metric)
        if search.metric not in metrics:
            raise ConfigError(f"search.metric={search.metric}: the validation gives only {', '.join(sorted(metrics))}")
        if (score := metrics[search.metric]) != score:
            raise UserError(f"search.metric={search.metric}: is not defined on the validation split")
        passed = {
            "step": result["steps"],
            "rows": result["train_rows"],
            "resumed_from": result.get("resumed_from"),
            "score": score,
        }
        return {**row, "steps": result["steps"], "samples": result["train_rows"], "scores": [*before, passed]}

    def failed(self, error: Exception) -> str:
        """See `CellRunner`: workers that were killed are no fault of the trial's."""
        return LOST if isinstance(error, WorkerError) and error.killed else FAILED

    def _drop_models(self, leg: Leg) -> None:
        """Keep the weights of the best trial so far alone."""
        record, last = self.search.record, self.search.ladder.rungs - 1
        winner = self.search.winner()
        kept = {cell.name for cell in winner.cells} if winner is not None else set()
        ended = [cell for trial in record.trials if record.score(trial, last) is not None for cell in trial.cells]
        for cell in ended if leg.trial >= 0 else [leg.cell]:
            if cell.name not in kept:
                _drop_weights(record.row(cell))

    def _log_row(self, leg: Leg, row: dict[str, Any]) -> None:
        facts = [row["status"] if not row.get("reason") else f"{row['status']}: {row['reason']}"]
        score = score_at(row, leg.rung)
        if score is not None:
            facts.append(f"{self.search.metric} {number(score)}")
        if row.get("steps"):
            facts.append(f"step {row['steps']:,}")
        log.info("%s (%s): %s", _name(leg), described(leg.setting), ", ".join(facts))


def steps_of(config: RunConfig, rows: int) -> int:
    """Return the optimizer steps of a run on so many rows."""
    batch, limit = config.batch.global_size, config.limit_train_batches
    order = SampleOrder(np.zeros(rows), seed=config.seed, global_size=batch, limit=limit)
    return config.max_steps or config.epochs * order.steps_per_epoch


def _name(leg: Leg) -> str:
    return f"trial {leg.trial}, rung {leg.rung}" if leg.trial >= 0 else f"confirmation, seed {leg.cell.seed}"


def _drop_weights(row: Any) -> None:
    for weights in (home() / row["job"]).glob("outputs/model/*.safetensors") if row.get("job") else []:
        weights.unlink(missing_ok=True)


def run_search(
    config: RunConfig, launcher: Callable[[], Launcher] | None = None, stack: Mapping[str, Any] | None = None
) -> Search:
    """Run a search from where it stands; return it.

    Raises:
        ConfigError: a bad design; a budget that is not enough for anything.
        UserError: data cannot be had; another process runs this search.
        Preempted: told to end; the same command goes on.
    """
    space = space_of(config)
    with search_store(space.name).claimed() as store:
        search = Search(config, store, launcher, stack or {})
        log.info("search %s: %d trials; results in %s", space.name, search.trials, store.path)
        search.run()
    return search
