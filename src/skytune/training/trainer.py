"""One job from inputs to results inside a worker: data, model, strategy, loop and prediction, wired together."""

import gc
import logging
import math
import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..checkpoint.run_card import check_weights_loaded, remember
from ..config import RunConfig, UserError
from ..config.schema.tracking import check_trackers_installed
from ..config.secrets import resolve_secrets
from ..data.batches import Ragged, TokenTable
from ..data.order import SampleOrder
from ..distributed.collectives import main_does
from ..distributed.context import DistContext, join
from ..distributed.preemption import FLAG_FILE, PreemptionListener
from ..job import Job, JobDir
from ..models import read_tokenizer
from ..models.head import Head, of_ours, own_settings
from ..tasks import Scoring, Task, find_task
from ..tasks.metrics import check
from .answers import with_answers
from .callbacks.base import Callbacks, Run, build_callbacks
from .callbacks.checkpoint import CheckpointCallback, TrainState
from .callbacks.early_stopping import EarlyStopping
from .callbacks.ema import Ema
from .callbacks.history import BestWeights, History
from .callbacks.profiler import Profiler
from .callbacks.progress import Progress
from .callbacks.trackers import Tracking
from .compiling import WIDTH, bounded
from .flops import Work, work_of
from .inputs import check_vocabulary, fit_columns, open_model, open_tables, targets_of, units_of, widest
from .loop import total_steps, train
from .memory_plan import memory_line
from .oom import EvalBatchSize, explained, micro_batch
from .outputs import taken, write_predictions
from .padding_check import check_padding
from .prediction import Collect, predict
from .results import Phases, TrainResult, check_whole_model, shapes_of, where_it_ran
from .select_step import open_steps
from .strategy import Strategy, build_strategy
from .versions import versions

log = logging.getLogger(__name__)


def run_job(jobdir: JobDir, job: Job, *, started: float, asked: int | None) -> None:
    """Train (for a `train` job), predict every evaluation split with the selected weights, write the results.

    Args:
        started: seconds since the epoch at which the launcher began; the time until now is the phase `start_s`.
        asked: number of processes that must have come up; None when nobody promised one.
    """
    config, phases, task = job.config, Phases(), find_task(job.config.task)
    if job.kind == "train":
        check_trackers_installed(config.tracker)
    phases.seconds["start_s"] = round(max(0.0, time.time() - started), 3)
    with phases.time("load_s"), explained("the model was opened"):
        accelerator, world = join(config, asked)
        tables = open_tables(jobdir, job)
        longest = max(int(table.lengths.max(initial=1)) for table in tables.values())
        config = bounded(config, longest, world.device.type)
        job = replace(job, config=config)
        gc.freeze()  # what was imported stays: neither training nor the end of the process looks at it again
        gc.enable()
        head = task.model(config, job.labels, tables.get("train"))
        model = open_model(jobdir, job, head)
        head = replace(head, settings={**head.settings, **own_settings(model)})
        if head.ready is not None:
            head.ready(model, tables)
        collect = task.collector(head)
        fit_columns(model, tables)
        check_vocabulary(model, tables)
        places = widest(model)
        for table in tables.values():
            table.widest = places
        for reason in filter(None, [main_does(world, lambda: check_padding(model, tables, collect))]):
            if world.main:
                log.warning("%s; batches are cut so that all their rows have one length, which takes longer", reason)
            for table in tables.values():
                table.one_length = True
        tokens = all(table.images is None for table in tables.values())  # of images nobody knows how many there are
        shapes, work = shapes_of(model), work_of(model) if tokens else None
        if job.kind == "train" and world.main and tokens:
            longest = int(tables["train"].lengths.max(initial=1))
            if line := memory_line(model, config, world, longest):
                log.info("%s", line)
        strategy = build_strategy(config, world)
        if job.kind == "train":
            strategy.prepare(model)
        else:
            strategy.place(model)
    at_once = EvalBatchSize(config.eval.batch_size)
    trained = None
    if job.kind == "train":
        trained = _train(jobdir, job, task, head, world, strategy, tables, phases, at_once, work, started)
    status = "completed" if trained is None else trained.status
    if status == "completed":
        known: dict[str, tuple[np.ndarray, Ragged]] = {}
        if trained is not None:
            if config.eval.threshold == "f1" and task.tune is not None:
                with phases.time("predict_s"):
                    known["validation"] = predict_split(strategy, tables["validation"], world, collect, config, at_once)
                rows, found = known["validation"]
                scoring = Scoring.of(config.eval, job.labels, settings=head.settings)
                chosen = task.tune(found, taken(targets_of(tables["validation"], "validation"), rows), scoring)
                head = replace(head, settings={**head.settings, **chosen})
            with phases.time("save_s"):
                _save(jobdir, job, world, strategy, shapes, head)
        with phases.time("predict_s"):
            ends = _ends(task, config, jobdir, job) if config.eval.generate else None
            for name in job.evaluation:
                rows, found = known.get(name) or predict_split(strategy, tables[name], world, collect, config, at_once)
                if ends is not None:
                    found = with_answers(strategy, tables[name], rows, found, world, config, ends)
                if world.main:
                    targets = targets_of(tables[name], name) if "labels" in tables[name].columns else None
                    write_predictions(jobdir.predictions(name), rows, targets, found)
                    log.info("predicted %d rows of '%s'", len(rows), name)
        if trained is not None:
            trained.callbacks("on_model_saved", trained.run)
    if world.main:
        jobdir.write_result(
            {
                "status": status,
                **where_it_ran(config, world, strategy),
                "phases": phases.seconds,
                "versions": versions(),
                **({"settings": own} if (own := of_ours(head.settings)) else {}),
                **(trained.numbers() if trained is not None else {}),
            }
        )
    if trained is not None:
        if status == "completed":
            trained.checkpoints.finish()
        trained.checkpoints.close()
    strategy.close()
    accelerator.end_training()


def _train(
    jobdir: JobDir,
    job: Job,
    task: Task,
    head: Head,
    world: DistContext,
    strategy: Strategy,
    tables: dict[str, TokenTable],
    phases: Phases,
    at_once: EvalBatchSize,
    work: Work | None,
    started: float,
) -> TrainResult:
    """Train and leave the selected weights in the strategy's model, or none where the run was told to end before."""
    config, table = job.config, tables["train"]
    check(config.eval.metrics, config.eval.extra_metrics)
    units = units_of(task, table)
    if units is not None and strategy.devices > world.size:
        raise UserError(f"strategy={strategy.name} counts rows on each GPU, and task={task.name} words: strategy=ddp")
    order = SampleOrder(
        table.lengths,
        seed=config.seed,
        global_size=config.batch.global_size,
        bucket_batches=config.batch.bucket_batches,
        limit=config.limit_train_batches,
        one_length=table.one_length,
        units=units,
    )
    optimizer = strategy.make_optimizer(config.optimizer)
    run = Run(
        config=config,
        job=jobdir,
        world=world,
        model=strategy.model,
        work=work,
        devices=strategy.devices,
        total_steps=total_steps(config, order),
        steps_per_epoch=order.steps_per_epoch,
        micro_batch=micro_batch(config.batch.global_size, config.batch.micro_size, world.size),
        extra=resolve_secrets(config.extra),
        begun=started,
    )
    best, history = BestWeights(config), History()
    ema = Ema(config.ema.decay, run.model) if config.ema.decay else None
    callbacks = _callbacks(config, history, best, ema, Tracking(job, history))
    snapshot = TrainState(strategy, best, history, callbacks, ema)
    checkpoints = CheckpointCallback(config, job.run_key, jobdir.root / "checkpoints", job.decisive, world, snapshot)
    checkpoints.open(launch=os.environ.get("SKYTUNE_LAUNCH") or str(os.getpid()))
    checkpoints.resume(run)
    check_weights_loaded(run.model, run.resumed_from, config.model.name)
    if world.main:
        remember(checkpoints.store, jobdir, jobdir.job, run.model)  # as it was written: lengths not bounded
    callbacks.append("checkpoints", checkpoints)
    notice = PreemptionListener(jobdir.root / FLAG_FILE, world.rank, config.launch.timeouts.kill)
    notice.listen()
    validation = table if config.debug.overfit else tables["validation"]
    rung = job.stop_at_step if job.stop_at_step is not None and job.stop_at_step < run.total_steps else None
    collect = task.collector(head)
    scoring = Scoring.of(config.eval, job.labels, settings=head.settings)

    def validate() -> dict[str, float]:
        with phases.time("validate_s"), ema.in_place() if ema is not None else nullcontext():
            rows, found = predict_split(strategy, validation, world, collect, config, at_once)
            scored = task.score(found, taken(targets_of(validation, "validation"), rows), scoring)
            known = {name: math.nan if value is None else value for name, value in scored.metrics.items()}
            return {**known, "n_rows": scored.n_rows}

    try:
        with explained("the optimizer changed the weights (its own state has their size, once or twice)"):
            steps = open_steps(run, strategy, optimizer, order, table, notice.given, head)
            try:
                train(
                    run,
                    steps=steps,
                    strategy=strategy,
                    order=order,
                    callbacks=callbacks,
                    validate=validate,
                    rewind=checkpoints.rewind,
                    stop_at=rung,
                )
            finally:
                steps.close()
    except BaseException:
        callbacks("on_exception", run)
        checkpoints.close()
        raise
    phases.seconds["train_s"] = round(run.train_seconds, 3)
    paused = validate() if run.step == rung and not run.stop else None
    if paused is not None:
        log.info("stopped at step %d of %d, as asked", run.step, run.total_steps)
    elif run.preempted:
        reason = notice.reason or "another process was"
        log.warning("told to end (%s): stopped after step %d of %d", reason, run.step, run.total_steps)
    elif (step := checkpoints.best_step(run.step)) is not None:
        strategy.load(checkpoints.best_weights(step))
    elif ema is not None:
        ema.hand_on()
    return TrainResult(run, order, callbacks, checkpoints, best, steps, paused)


def _callbacks(
    config: RunConfig, history: History, best: BestWeights, ema: Ema | None, tracking: Tracking
) -> Callbacks:
    """Return all callbacks but the one that saves checkpoints, which comes last."""
    own: list[tuple[str, Any]] = [("history", history), ("tracking", tracking), ("progress", Progress())]
    own.append(("best_weights", best))
    if config.early_stopping.patience:
        own.append(("early_stopping", EarlyStopping(config.early_stopping, best.metric, best.smaller)))
    if ema is not None:
        own.append(("ema", ema))
    if config.debug.profile_steps:
        own.append(("profiler", Profiler(config.debug.profile_steps)))
    return build_callbacks(config, own)


def _ends(task: Task, config: RunConfig, jobdir: JobDir, job: Job) -> list[int]:
    """Return the tokens that end a generated answer.

    Raises:
        UserError: the task has none.
    """
    if task.ends is None or not job.tokenizer:
        raise UserError(f"eval.generate=true: task={task.name} has no answers to generate (task=sft has)")
    return task.ends(read_tokenizer(str(jobdir.root / job.tokenizer)), config)


def predict_split(
    strategy: Strategy,
    table: TokenTable,
    world: DistContext,
    collect: Collect,
    config: RunConfig,
    at_once: EvalBatchSize,
) -> tuple[np.ndarray, Ragged]:
    """Return row numbers of a split and what is kept of each, see `prediction.predict`; `world` may be this process
    alone where the strategy's forward needs no other."""
    alone = strategy.no_sync()
    if alone is None:
        strategy.broadcast_buffers()
    with alone if alone is not None else nullcontext():
        return predict(
            strategy.module,
            table,
            world,
            collect,
            batch_size=config.eval.batch_size,
            limit=config.limit_eval_batches,
            multiple=config.batch.pad_multiple or WIDTH,
            at_once=at_once,
            lockstep=alone is None,
            autocast=strategy.autocast,
        )


def _save(
    jobdir: JobDir, job: Job, world: DistContext, strategy: Strategy, shapes: dict[str, tuple[int, ...]], head: Head
) -> None:
    """Write the model under a temporary name, then put it in its place."""
    from .. import models

    model = strategy.export()
    if model is None or not world.main:
        return
    check_whole_model(model, shapes)
    models.give_settings(model, head.settings)
    temporary = jobdir.model.with_name(".model.part")
    tokenizer = jobdir.root / job.tokenizer if job.tokenizer else None
    models.save_model(model, temporary, tokenizer)
    shutil.rmtree(jobdir.model, ignore_errors=True)  # of an earlier run of this very folder
    temporary.replace(jobdir.model)
