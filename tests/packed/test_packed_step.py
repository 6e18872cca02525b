"""Steps in blocks: what is accumulated, what a block leaves, and that a run can be cut anywhere."""

import numpy as np
import pytest
import torch

from skytune.config import OptimizerConfig, Precision, RunConfig
from skytune.data.order import SampleOrder
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.training.callbacks.base import Run
from skytune.training.packed_step import COARSE, PackedTrainStep
from skytune.training.schedule import build_optimizer
from skytune.training.strategy import Strategy


def steps_of(model, data, *, micro=8, optimizer=None):
    order = SampleOrder(data.lengths, seed=3, global_size=8, bucket_batches=1)
    optimizer = optimizer or build_optimizer(OptimizerConfig(lr=3e-3), model)
    world = DistContext(0, 1, torch.device("cpu"), Precision.fp32)
    config = RunConfig(seed=3)
    run = Run(config, JobDir("/nonexistent"), world, model.train(), 20, order.steps_per_epoch, micro_batch=micro)
    return PackedTrainStep(run, Strategy(config, world), optimizer, order, data, lambda: False)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("micro", [1, 3, 4])
def test_accumulation_is_the_whole_batch(micro, tiny, rows_of):
    """20 rows, global batch 8: two whole steps and one of 4 rows, in micro-batches that do not divide them."""
    data, whole, cut = rows_of(20), tiny(), tiny()
    expected = steps_of(whole, data).advance(0, [3e-3] * 6)
    found = steps_of(cut, data, micro=micro).advance(0, [3e-3] * 6)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(weights(cut), weights(whole), atol=1e-5, rtol=0)


def test_blocks_of_any_size_are_the_same_run(tiny, rows_of):
    """With dropout: six steps at once, one by one, and continued by another process, to the bit."""
    data, at_once, single, begun = rows_of(20), tiny(dropout=0.2), tiny(dropout=0.2), tiny(dropout=0.2)
    rates = [3e-3 * (1 - step / 6) for step in range(6)]
    expected = steps_of(at_once, data).advance(0, rates)
    one = steps_of(single, data)
    found = torch.cat([one.advance(step, [rates[step]]) for step in range(6)], 1)
    assert torch.equal(found, expected) and torch.equal(weights(single), weights(at_once))
    optimizer = build_optimizer(OptimizerConfig(lr=3e-3), begun)
    before = steps_of(begun, data, optimizer=optimizer).advance(0, rates[:2])
    after = steps_of(begun, data, optimizer=optimizer).advance(2, rates[2:])
    assert torch.equal(torch.cat([before, after], 1), expected) and torch.equal(weights(begun), weights(at_once))


def test_dropout_differs_between_steps_and_repeats_with_the_seed(tiny, rows_of):
    data = rows_of(8)
    runs = [steps_of(tiny(dropout=0.5), data).advance(0, [0.0, 0.0]) for _ in range(2)]
    assert torch.equal(runs[0], runs[1])
    assert runs[0][0, 0] != runs[0][0, 1], "the same rows and weights in another step: another mask"


def test_a_step_longer_than_every_budget_fits_into_one_that_depends_on_its_length_alone(tiny, rows_of):
    """Not on which steps this process took before: rounding and masks of a resumed run would differ."""
    data = rows_of(20)
    steps, other = steps_of(tiny(), data), steps_of(tiny(), data)
    steps.budgets = other.budgets = [64]
    assert np.isfinite(steps.advance(0, [1e-3])[0, 0].item()) and steps.computed_tokens == COARSE
    other._budget(2 * COARSE)
    for tokens in (60, 65, COARSE, COARSE + 1):
        assert steps._budget(tokens) == other._budget(tokens) >= tokens


def test_graphs_are_let_go(tiny, rows_of):
    """NCCL's communicator does not end before the graphs that it was captured in: processes would hang at their end."""

    class Graph:
        here = True

        def reset(self):
            self.here = False

    steps, graph = steps_of(tiny(), rows_of(8)), Graph()
    steps.packed.graphs[64, False, True] = graph
    steps.close()
    assert not graph.here and not steps.packed.graphs
