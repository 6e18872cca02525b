"""Captured steps of language models, whose rows lie one after the other, on a CPU: their shapes, losses and weights."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from skytune.config import Precision, RunConfig, from_dict
from skytune.data.batches import KEPT, SEQUENCES, Padding, TokenTable
from skytune.data.order import SampleOrder
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.packed.widths import Widths
from skytune.tasks import language
from skytune.training import select_step
from skytune.training.callbacks.base import Run
from skytune.training.captured_step import CapturedSteps
from skytune.training.strategy import Strategy
from skytune.training.train_step import EagerStep, lay_out

STEPS = 8


@pytest.fixture
def table() -> TokenTable:
    """Rows of 2 to 60 tokens; the end of each counts."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(1, 50, length).tolist() for length in draw.integers(2, 60, 40)]
    starts = [int(draw.integers(1, len(row))) for row in ids]
    labels = [[-100] * start + row[start:] for row, start in zip(ids, starts, strict=True)]
    columns = {"input_ids": ids, "labels": labels}
    return TokenTable(pa.table({n: pa.array(rows, pa.list_(pa.int32())) for n, rows in columns.items()}), Padding())


def model():
    torch.manual_seed(0)
    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, intermediate_size=64, **own))


def opened(table, how, micro=8):
    """Return ways to take the steps of a run that may be captured (`on`), or are eager with padding (`off`)."""
    config = from_dict(RunConfig, {"seed": 3, "compute": {"packed": how}})
    units = language.weigh(table)
    order = SampleOrder(table.lengths, seed=3, global_size=8, bucket_batches=1, units=units)
    world = DistContext(0, 1, torch.device("cpu"), Precision.fp32)
    network, head, strategy = model(), language.head("sft"), Strategy(config, world)
    head.ready(network, {"train": table})
    strategy.prepare(network.train())
    strategy.make_optimizer(config.optimizer)
    run = Run(config, JobDir("/nonexistent"), world, network, 20, order.steps_per_epoch, micro_batch=micro)
    return select_step.open_steps(run, strategy, strategy.optimizer, order, table, lambda: False, head)


def take(steps, count=STEPS):
    losses = []
    while len(losses) < count:
        losses += steps.take([1e-3] * min(steps.most, count - len(losses))).losses
        steps.run.step = len(losses)
    return losses


@pytest.mark.parametrize("micro", [8, 3])
def test_captured_packed_steps_are_the_eager_padded_ones(table, micro):
    """Weighed by the tokens that count, of the whole batch, however it is cut."""
    eager = opened(table, "off", micro)
    assert type(eager) is EagerStep and not table.streamed
    expected = take(eager)
    captured = opened(table, "on", micro)
    assert type(captured) is CapturedSteps and table.streamed and captured.whole
    assert captured.run.report["steps_taken"] == "captured, rows packed"
    np.testing.assert_allclose(take(captured), expected, atol=2e-6)
    for one, other in zip(eager.run.model.parameters(), captured.run.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-4)
    assert captured.padding_share < 0.5


def test_rows_come_in_few_shapes_and_nothing_of_them_is_lost(table):
    captured = opened(table, "on")
    take(captured, 15)
    widths = {shape.inputs["input_ids"].shape[1] for shape in captured.shapes.values()}
    assert widths <= set(captured.widths.chosen), "a width is chosen from the sums of the micro-batches' lengths"
    assert len(captured.shapes) == len(widths), "one shape a width, where the rows were planned"
    rows = np.array([3, 0, 7])
    few = table.stream(rows, captured.widths(rows), (0, 0))
    assert len(few["borders"]) % SEQUENCES == 0 and len(few["kept"]) % -(-few["input_ids"].shape[1] // KEPT) == 0
    plain, few = table.stream(rows), lay_out(table, rows, captured.widths)
    total = plain["input_ids"].shape[1]
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(few[name][:, :total], plain[name])
    assert few["kept"][few["kept"] >= 0].tolist() == plain["kept"].tolist()
    gaps = few["borders"].diff()
    assert few["borders"][-1] == few["input_ids"].shape[1] and gaps.min() >= 0
    assert gaps.max() <= table.lengths.max(), "attention counts on the longest row"


def test_widths_of_joined_rows_hold_their_sum():
    order = SampleOrder(np.array([5, 70, 130, 9]), seed=0, global_size=2, bucket_batches=1)
    cut = lambda step: order.micro_batches(step, 0, 1, 2)  # noqa: E731
    places = np.array([[1, 4], [1, 60], [3, 120], [1, 8]])
    widths = Widths.plan(order, cut, 2, 8, places)
    for rows in order.epoch(0):
        begin, counted = places[rows].sum(0)
        assert widths.least[widths(rows)][0] > begin and widths.least[widths(rows)][1] >= counted
    assert (
        all(width % 64 == 0 for width in widths.chosen) and widths(order.rows(0)) >= order.lengths[order.rows(0)].sum()
    )
    assert widths(np.array([0, 1, 2, 3])) in (widths.chosen[-1], 1024), "what nobody planned is coarse"
