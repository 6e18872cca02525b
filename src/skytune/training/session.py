"""One job from inputs to results inside a worker: data, model, strategy, loop and prediction, wired together."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..config import RunConfig
from ..data.batches import TokenTable
from ..job import Job, JobDir
from .callbacks import Callbacks, Run, build_callbacks
from .checkpointing import Checkpoints
from .compiling import bounded
from .devices import World, join
from .export import refuse_partial, shapes_of
from .flops import Work, efficiency, work_of
from .inputs import check_vocabulary, labels_of, open_model, open_tables
from .loop import total_steps, train
from .metrics import check, compute
from .order import SampleOrder
from .outputs import write_predictions
from .prediction import predict
from .preemption import FLAG_FILE, Notice
from .recording import BestWeights, History, Profiler, Progress
from .strategy import Strategy, build_strategy, size
from .versions import versions

log = logging.getLogger(__name__)


class Phases:
    """Seconds of every phase of the job, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the block's time to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 3)


def run_job(jobdir: JobDir, job: Job, *, started: float, asked: int | None) -> None:
    """Train (for a `train` job), predict every evaluation split with the selected weights, write the results.

    Args:
        started: seconds since the epoch at which the launcher began; the time until now is the phase `start_s`.
        asked: number of processes that must have come up; None when nobody promised one.
    """
    config, phases = job.config, Phases()
    phases.seconds["start_s"] = round(max(0.0, time.time() - started), 3)
    with phases.time("load_s"):
        accelerator, world = join(config, asked)
        tables = open_tables(jobdir, job)
        config = bounded(config, max(int(table.lengths.max(initial=1)) for table in tables.values()))
        job = replace(job, config=config)
        model = open_model(jobdir, job)
        check_vocabulary(model, tables)
        shapes, work = shapes_of(model), work_of(model)
        strategy = build_strategy(config, world)
        if job.kind == "train":
            strategy.prepare(model)
        else:
            strategy.place(model)
    report: dict[str, Any] = {}
    checkpoints: Checkpoints | None = None
    if job.kind == "train":
        report, checkpoints = _train(jobdir, job, world, strategy, tables, phases, work)
    status = report.pop("status", "completed")
    if status == "completed":
        if job.kind == "train":
            with phases.time("save_s"):
                _save(jobdir, job, world, strategy, shapes)
        with phases.time("predict_s"):
            _predict(jobdir, job, world, strategy, tables)
    if world.main:
        jobdir.write_result(
            {
                "status": status,
                "world_size": world.size,
                "processes_asked": config.launch.num_processes,
                "device": world.describe(),
                "strategy": strategy.name,
                "precision": world.precision.value,
                "precision_requested": world.requested.value,
                "peak_memory_bytes": world.peak_memory_bytes(),
                "phases": phases.seconds,
                "versions": versions(),
                **report,
            }
        )
    if checkpoints is not None:
        if status == "completed":
            checkpoints.finish()
        checkpoints.close()
    strategy.close()
    accelerator.end_training()


def _train(
    jobdir: JobDir,
    job: Job,
    world: World,
    strategy: Strategy,
    tables: dict[str, TokenTable],
    phases: Phases,
    work: Work | None,
) -> tuple[dict[str, Any], Checkpoints]:
    """Train and leave the selected weights in the strategy's model; return the numbers for the result.

    The status is `preempted` where the run was told to end before its last step.
    """
    config, table = job.config, tables["train"]
    check(config.eval.metrics, config.eval.extra_metrics)
    order = SampleOrder(
        table.lengths,
        seed=config.seed,
        global_size=config.batch.global_size,
        bucket_batches=config.batch.bucket_batches,
        limit=config.limit_train_batches,
    )
    optimizer = strategy.make_optimizer(config.optimizer)
    run = Run(
        config=config,
        job=jobdir,
        world=world,
        model=strategy.model,
        work=work,
        total_steps=total_steps(config, order),
        steps_per_epoch=order.steps_per_epoch,
        extra=dict(config.extra),
    )
    best, history = BestWeights(config), History()
    checkpoints = Checkpoints(
        config, job.run_key, jobdir.root / "checkpoints", job.decisive, world, strategy, optimizer, best, history
    )
    checkpoints.open(launch=os.environ.get("SKYTUNE_LAUNCH") or str(os.getpid()))
    checkpoints.resume(run)
    callbacks = _callbacks(config, history, best, checkpoints)
    notice = Notice(jobdir.root / FLAG_FILE, world.rank)
    notice.listen()
    validation = table if config.debug.overfit else tables["validation"]

    def validate() -> dict[str, float]:
        with phases.time("validate_s"):
            rows, logits = _predict_split(strategy, validation, world, config)
            labels = labels_of(validation, "validation")[rows]
            return compute(config.eval.metrics, config.eval.extra_metrics, logits, labels)

    try:
        train(
            run,
            strategy=strategy,
            optimizer=optimizer,
            order=order,
            table=table,
            callbacks=callbacks,
            validate=validate,
            notice=notice.given,
        )
    except BaseException:
        callbacks("on_exception", run)
        checkpoints.close()
        raise
    phases.seconds["train_s"] = round(run.train_seconds, 3)
    if run.preempted:
        reason = notice.reason or "another process was"
        log.warning("told to end (%s): stopped after step %d of %d", reason, run.step, run.total_steps)
    elif (step := best.wanted(run)) is not None:
        strategy.load(checkpoints.weights(step))
    share = -(-config.batch.global_size // world.size)
    micro = min(config.batch.micro_size or share, share)
    parameters = list(run.model.parameters())
    seconds = max(run.train_seconds, 1e-9)
    numbers = {
        "status": "preempted" if run.preempted else "completed",
        "resumed_from": run.resumed_from,
        "save_failed": checkpoints.failure,
        "save_stall_s": round(checkpoints.stall_seconds, 3),
        "steps": run.step,
        "epochs": round(run.step / order.steps_per_epoch, 4),
        "steps_per_epoch": order.steps_per_epoch,
        "global_batch": config.batch.global_size,
        "micro_batch": micro,
        "accumulation": -(-share // micro),
        **efficiency(run),
        "select": config.checkpoint.select.value,
        "best": best.best,
        "train_rows": run.rows,
        "train_tokens": run.tokens,
        "padding_share": _padding_share(order, config, run.step),
        "samples_per_s": round(run.rows / seconds, 2),
        "tokens_per_s": round(run.tokens / seconds, 1),
        "parameters": sum(size(p) for p in parameters),
        "trainable_parameters": sum(size(p) for p in parameters if p.requires_grad),
    }
    return numbers, checkpoints


def _callbacks(config: RunConfig, history: History, best: BestWeights, checkpoints: Checkpoints) -> Callbacks:
    own: list[tuple[str, Any]] = [("history", history), ("progress", Progress()), ("best_weights", best)]
    own.append(("checkpoints", checkpoints))
    if config.debug.profile_steps:
        own.append(("profiler", Profiler(config.debug.profile_steps)))
    return build_callbacks(config, own)


def _predict_split(
    strategy: Strategy, table: TokenTable, world: World, config: RunConfig
) -> tuple[np.ndarray, np.ndarray]:
    return predict(
        strategy.module,
        table,
        world,
        batch_size=config.eval.batch_size,
        limit=config.limit_eval_batches,
        multiple=config.batch.pad_multiple,
        autocast=strategy.autocast,
    )


def _predict(jobdir: JobDir, job: Job, world: World, strategy: Strategy, tables: dict[str, TokenTable]) -> None:
    """Write the logits of every evaluation split."""
    for name in job.evaluation:
        rows, logits = _predict_split(strategy, tables[name], world, job.config)
        if world.main:
            write_predictions(jobdir.predictions(name), rows, tables[name].labels, logits)
            log.info("predicted %d rows of '%s'", len(rows), name)


def _save(jobdir: JobDir, job: Job, world: World, strategy: Strategy, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write the model under a temporary name, then put it in its place."""
    from .. import models

    model = strategy.export()
    if model is None or not world.main:
        return
    refuse_partial(model, shapes)
    temporary = jobdir.model.with_name(".model.part")
    tokenizer = jobdir.root / job.tokenizer if job.tokenizer else None
    models.save_model(model, temporary, tokenizer)
    temporary.replace(jobdir.model)


def _padding_share(order: SampleOrder, config: RunConfig, steps: int) -> float:
    """Return the share of computed tokens that is padding, over the first epoch at most."""
    real = computed = 0
    for step in range(min(steps, order.steps_per_epoch)):
        lengths = order.lengths[order.rows(step)]
        multiple = config.batch.pad_multiple
        real += int(lengths.sum())
        computed += len(lengths) * -(-int(lengths.max()) // multiple) * multiple
    return round(1 - real / max(computed, 1), 4)
