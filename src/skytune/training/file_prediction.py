"""A job that predicts on files: each process has shards of its own, from the file to the file, one ahead of the model.

Where the forward pass takes all processes (sharded weights), they go through the shards together.
"""

import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import models
from ..config import UserError
from ..data.batches import Padding, Ragged, TokenTable
from ..data.rows import drop_bad
from ..data.stream import Shard, read_shards
from ..data.written import write_shard
from ..distributed.collectives import all_do
from ..distributed.context import join
from ..job import Job, JobDir, write_json
from ..models.head import own_settings
from ..tasks import Scoring, Task, find_task
from .compiling import bounded
from .inputs import check_vocabulary, fit_columns, open_model, padding_of, widest
from .oom import EvalBatchSize, explained
from .padding_check import check_padding
from .results import Phases, where_it_ran
from .strategy import build_strategy
from .trainer import predict_split
from .versions import versions

log = logging.getLogger(__name__)

PROBED = 1000
"""Rows on which it is tried whether logits depend on padding."""


def run_job(jobdir: JobDir, job: Job, *, started: float, asked: int | None) -> None:
    """Predict on the files that the configuration names, write the shards that are not there yet, and the result; see
    `trainer.run_job`."""
    phases, task = Phases(), find_task(job.config.task)
    phases.seconds["start_s"] = round(max(0.0, time.time() - started), 3)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # nothing is forked here
    with phases.time("load_s"), explained("the model was opened"):
        accelerator, world = join(job.config, asked)
        config = bounded(job.config, job.config.data.max_length or 512, world.device.type)
        job = replace(job, config=config)
        gc.freeze()  # as in `trainer.run_job`
        gc.enable()
        head = task.model(config, job.labels, None)
        model = open_model(jobdir, job, head)
        head = replace(head, settings={**head.settings, **own_settings(model)})
        collect = task.collector(head)
        reader = _Reader(jobdir, job, task, Scoring.of(config.eval, job.labels, settings=head.settings))
        probe = reader.table(next(reader.shards(min(PROBED, config.predict.shard_rows))))[1]
        if len(probe):
            fit_columns(model, {"input": probe})
        reader.widest = widest(model)
        reader.one_length = bool(len(probe) and check_padding(model, {"input": probe}, collect))
        if reader.one_length and world.main:
            log.warning("the logits of a row depend on padding: batches are cut so that all rows have one length")
        strategy = build_strategy(config, world)
        strategy.place(model)
    at_once = EvalBatchSize(config.eval.batch_size)
    together = strategy.no_sync() is None
    own = world if together else replace(world, rank=0, size=1)
    told = time.monotonic()

    def work() -> int:
        """Write this process's shards; return how many rows it computed."""
        nonlocal told
        count = 0
        wanted = reader.missing(None if together else (world.rank, world.size))
        for shard, kept, table in _ahead(wanted):
            found = Ragged.joined([])
            if len(table):
                fit_columns(strategy.model, {"input": table}, say=False)
                check_vocabulary(strategy.model, {"input": table})
                found = predict_split(strategy, table, own, collect, config, at_once)[1]
            if own.main:
                reader.write(shard, kept, found)
            count += len(table)
            if world.main and time.monotonic() - told > config.log.every_seconds:
                told = time.monotonic()
                log.info("predicted up to row %d", shard.rows.number[-1] + 1)
        return count

    with phases.time("predict_s"):
        rows = all_do(world, work) * (1 if together else world.size)
    if world.main:
        jobdir.write_result(
            {
                "status": "completed",
                **where_it_ran(config, world, strategy),
                "samples_per_s": round(rows / max(phases.seconds["predict_s"], 1e-3), 2),
                "phases": phases.seconds,
                "versions": versions(),
            }
        )
    strategy.close()
    accelerator.end_training()


class _Reader:
    """Shards from the files to token tables, and with a model's answers to shards on the disk."""

    def __init__(self, jobdir: JobDir, job: Job, task: Task, scoring: Scoring) -> None:
        self.config, self.task, self.scoring, self.folder = job.config, task, scoring, jobdir.root / "shards"
        self.padding: Padding = padding_of(jobdir, job)
        folder = str(jobdir.root / str(job.tokenizer))
        self.reader = None if self.padding.pixels is not None else models.read_tokenizer(folder)
        self.one_length = False
        self.widest: int | None = None

    def shards(self, rows: int) -> Iterator[Shard]:
        """Yield the rows of all files."""
        columns = tuple(column for column in self.task.columns(self.config.data) if column.needed)
        return read_shards(str(self.config.predict.input), self.config.data, columns, rows)

    def missing(self, part: tuple[int, int] | None) -> Iterator[tuple[Shard, np.ndarray, TokenTable]]:
        """Yield the shards that are not on the disk; with `part` (rank, size) those of this process."""
        for shard in self.shards(self.config.predict.shard_rows):
            if (part is None or shard.number % part[1] == part[0]) and not self._note(shard).is_file():
                yield shard, *self.table(shard)

    def table(self, shard: Shard) -> tuple[np.ndarray, TokenTable]:
        """Return which rows of a shard have a text, and their tokens.

        Raises:
            UserError: a row has none and `data.bad_rows` is `error`.
        """
        if taken := [name for name in self.columns(None) if name in shard.header]:
            raise UserError(
                f"predict.input has a column '{taken[0]}': predict.prefix=model_ names the new one differently"
            )
        start = int(shard.rows.number[0])  # type: ignore[index]
        rows, _ = drop_bad(self.task.arrange(shard.rows, self.config.data), self.config.data.bad_rows)
        kept = np.asarray(rows.number) - start
        table = TokenTable(self.task.inputs(rows, self.reader, self.config.data.max_length)[0], self.padding)
        table.one_length, table.widest = self.one_length, self.widest
        return kept, table

    def columns(self, found: Ragged | None) -> dict[str, list[Any]]:
        """Return the new columns by name, of what was kept of each row; None for their names alone."""
        some = Ragged.of(np.zeros((1, max(1, len(self.scoring.names))), np.float32)) if found is None else found
        new = self.task.predicted(some, self.scoring)
        if self.config.predict.logits:
            new["logits"] = [part.tolist() for part in np.split(some.values, some.offsets[1:-1])]
        return {f"{self.config.predict.prefix}{name}": values for name, values in new.items()}

    def write(self, shard: Shard, kept: np.ndarray, found: Ragged) -> None:
        """Write a shard, and then the note that says that it is there."""
        new: dict[str, list[Any]] = {}
        for name, values in self.columns(found if len(kept) else None).items():
            new[name] = [None] * len(shard)
            for place, value in zip(kept.tolist(), values if len(kept) else [], strict=True):
                new[name][place] = value
        kind = self.config.predict.kind
        write_shard(self._note(shard).with_suffix(f".{kind}"), shard, new, kind)
        counts = Counter(value for value in next(iter(new.values())) if isinstance(value, str))
        note = {
            "rows": len(shard),
            "without_text": len(shard) - len(kept),
            "left_out": shard.left_out,
            "counts": counts,
        }
        write_json(self._note(shard), note)

    def _note(self, shard: Shard) -> Path:
        return self.folder / f"{shard.number:08d}.json"


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items, of which the next one is made meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
