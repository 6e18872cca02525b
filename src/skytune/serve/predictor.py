"""A trained model that answers rows: opened, tokenized for and computed by the very code of an evaluation."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from .. import models
from ..config import BadRows, RunConfig, UserError
from ..config.schema.task import AUTO
from ..config.trust import approve
from ..data.batches import TokenTable
from ..data.columns import rows_of
from ..data.images import IMAGE, KIND
from ..data.rows import drop_bad
from ..distributed.context import join
from ..job import JobDir
from ..models.head import own_settings
from ..tasks import TASKS, Scoring, find_task, of_saved
from ..training.compiling import bounded
from ..training.inputs import check_vocabulary, fit_columns, open_saved, padding_by, widest
from ..training.oom import EvalBatchSize
from ..training.padding_check import check_padding
from ..training.strategy import build_strategy
from ..training.trainer import predict_split

log = logging.getLogger(__name__)

Row = Mapping[str, Any]
"""What stands in the task's columns: texts, lists of words, or the bytes of images."""

Form = Literal["text", "words", "image"]

REQUEST = "the request"
TEXT, PAIR = "text", "text_pair"
"""Columns of a row."""
PROBES = (3, 12, 40)
"""Words of the made-up texts on which it is tried whether logits depend on padding."""


@dataclass(frozen=True)
class Answer:
    """What is said of one row."""

    values: dict[str, Any]
    """The columns that `pipeline=predict` writes."""

    logits: list[float]
    """The model's own numbers."""

    truncated: bool
    """Whether the row had more tokens than the model is given."""


@dataclass
class Predictor:
    """A trained model, in memory. One thread at a time may ask it.

    Attributes:
        form: what a row is: a text (or two), a list of words, or an image's bytes.
        limit: tokens at which rows are cut; None where there is no limit.
    """

    checkpoint: str
    config: RunConfig
    limit: int | None = field(init=False)

    def __post_init__(self) -> None:
        """Open the model.

        Raises:
            UserError: there is none, or one that answers no texts.
        """
        saved = models.saved_model(self.checkpoint)
        if saved.target:
            where = f"{self.checkpoint}: its {models.TARGET_FILE}"
            approve({"model._target_": saved.target}, self.config.plugins, self.config.trust, where)
        self.saved = saved
        self.task = find_task(replace(self.config.task, name=_task_name(saved, self.config, self.checkpoint)))
        if self.task.name in ("causal-lm", "sft"):
            raise UserError(_language_model(self.checkpoint, Path(saved.folder)))
        model = replace(self.config.model, name=saved.folder, _target_=saved.target)
        if saved.target:
            model = replace(model, tokenizer=saved.folder if saved.tokenizer else None)
        data = replace(self.config.data, text=TEXT, text_pair=PAIR, image=IMAGE, label="label", label_columns=None)
        columns = [column for column in self.task.columns(data) if column.needed]
        if odd := [column.name for column in columns if column.name not in (TEXT, PAIR, IMAGE)]:
            raise UserError(f"{self.checkpoint}: task={self.task.name} reads '{odd[0]}', which cannot be served")
        self.form: Form = "image" if columns[0].role == IMAGE else "text" if columns[0].kind == "text" else "words"
        data = replace(data, max_length=data.max_length or _trained_length(Path(saved.folder)))
        self.reader, self.limit = self.task.opens(data, model)
        self.data = replace(data, max_length=self.limit)
        config = replace(self.config, model=model, data=self.data)
        _, self.world = join(config, 1)
        self.config = config = bounded(config, self.limit or 512, self.world.device.type)
        head = self.task.model(config, saved.labels, None)
        network = open_saved(saved.folder, saved.target, self.reader)
        head = replace(head, settings={**head.settings, **own_settings(network)})
        self.scoring = Scoring.of(config.eval, saved.labels, settings=head.settings)
        self.collect = self.task.collector(head)
        self.padding = padding_by(self.reader)
        self.one_length, self.widest, self.checked = False, widest(network), [-1, -1, -1]
        self.strategy = build_strategy(config, self.world)
        self.strategy.model = network
        if self.form != "image":
            probe = self._table(self._probes())[0]
            self.one_length = bool(check_padding(network, {REQUEST: probe}, self.collect))
        if self.one_length:
            log.warning("the logits of a row depend on padding: batches are cut so that all rows have one length")
        self.strategy.place(network.eval())
        self.at_once = EvalBatchSize(config.eval.batch_size)

    def answers(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        """Return what is said of each of rows with the same columns, or why nothing can be: a row that cannot be
        computed does no harm to the others."""
        try:
            return list(self._answers(rows))
        except Exception as error:
            if len(rows) == 1:
                return [error]
        half = len(rows) // 2
        return [*self.answers(rows[:half]), *self.answers(rows[half:])]

    def _answers(self, rows: Sequence[Row]) -> list[Answer]:
        table, cut = self._table(rows)
        found = predict_split(self.strategy, table, self.world, self.collect, self.config, self.at_once)[1]
        columns = self.task.predicted(found, self.scoring)
        numbers = [part.tolist() for part in np.split(found.values, found.offsets[1:-1])]
        if not np.isfinite(found.values).all():
            raise ArithmeticError("the model's numbers are not finite")
        return [
            Answer({name: values[row] for name, values in columns.items()}, numbers[row], cut[row])
            for row in range(len(rows))
        ]

    def _table(self, rows: Sequence[Row]) -> tuple[TokenTable, list[bool]]:
        """Return the tokens of rows, and which of these were cut off."""
        names = list(rows[0])
        values = pa.table(
            {
                name: pa.array([{"bytes": row[name]} for row in rows], KIND)
                if name == IMAGE
                else [r[name] for r in rows]
                for name in names
            }
        )
        columns = tuple(column for column in self.task.columns(self.data) if column.name in names)
        found = self.task.arrange(rows_of(values.column, columns, names, REQUEST), self.data)
        kept, lost = drop_bad(found, BadRows.drop)
        if lost:
            raise UserError(next(iter(found.odd.values()), "the text is blank"))
        tokens, _, cut = self.task.inputs(kept, self.reader, self.limit)
        table = TokenTable(tokens, self.padding)
        table.one_length, table.widest = self.one_length, self.widest
        if (table.lengths < 1).any():
            raise UserError("the text has no tokens")
        fit_columns(self.strategy.model, {REQUEST: table}, say=False)
        largest = [table.largest(), table.largest("token_type_ids"), int(table.lengths.max())]
        if any(new > old for new, old in zip(largest, self.checked, strict=True)):
            check_vocabulary(self.strategy.model, {REQUEST: table})
            self.checked = list(map(max, largest, self.checked))
        if cut in (0, len(rows)):
            return table, [bool(cut)] * len(rows)
        full = (table.lengths == self.limit).tolist()
        if sum(full) != cut:  # some are as long as can be, and whole
            full = [there and bool(self._table([row])[1][0]) for there, row in zip(full, rows, strict=True)]
        return table, full

    def _probes(self) -> list[Row]:
        """Return texts of several lengths, made of the tokenizer's own words."""
        draw = np.random.default_rng(0)
        special = set(self.reader.all_special_tokens)
        words = [word for word in sorted(self.reader.get_vocab()) if word.isalpha() and word not in special] or ["a"]
        texts = [[str(word) for word in draw.choice(words, count)] for count in PROBES]
        return [{TEXT: text if self.form == "words" else " ".join(text)} for text in texts]


def _task_name(saved: models.SavedModel, config: RunConfig, checkpoint: str) -> str:
    name = config.task.name if config.task.name != AUTO else of_saved(saved, checkpoint)
    return next(iter(TASKS)) if name == AUTO else name  # a network of one's own says nothing of it


def _trained_length(folder: Path) -> int | None:
    """Return where rows were cut in training, of a model that lies in its run's folder."""
    job = JobDir(folder.parent.parent)
    if folder != job.model or not job.file.is_file():
        return None
    try:
        return job.job.config.data.max_length
    except UserError:  # another version's: the model's own limit
        return None


def _language_model(checkpoint: str, folder: Path) -> str:
    if models.is_adapter(folder):
        merged = f"`python src/run.py pipeline=merge checkpoint={checkpoint}` makes one model of it and its base"
        return (
            f"{checkpoint}: is a language model's adapter: {merged}, and `vllm serve {checkpoint}-merged` serves that"
        )
    return (
        f"{checkpoint}: is a language model; vLLM batches texts while they are written, which this server does not: "
        f"`pip install vllm`, then `vllm serve {checkpoint} --host 127.0.0.1` (https://docs.vllm.ai)"
    )
