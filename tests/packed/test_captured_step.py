"""Captured steps on a CPU, where nothing is captured but everything else is as on a GPU."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from own_models import Words
from pictures import encoded, pixels

from skytune.config import AugmentConfig, OptimizerName, Precision, RunConfig, from_dict
from skytune.data.batches import Padding, TokenTable
from skytune.data.order import SampleOrder
from skytune.data.pixels import Augmentation, Pixels
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.models.head import Head
from skytune.packed.cuda_graph import NotCapturable
from skytune.packed.widths import COARSE, Widths
from skytune.training import select_step
from skytune.training.callbacks.base import Run
from skytune.training.captured_step import CapturedSteps
from skytune.training.compiling import is_worth_it
from skytune.training.eligibility import not_captured_reason
from skytune.training.packed_step import PackedTrainStep
from skytune.training.strategy import Strategy
from skytune.training.train_step import EagerStep

RATES = [3e-3 * (1 - step / 6) for step in range(6)]


def given(model, data, *, micro=8, **groups):
    """Return what ways to take steps are made of: global batches of 8 rows."""
    config = from_dict(RunConfig, {"seed": 3, "compute": {"packed": "on"}, **groups})
    order = SampleOrder(data.lengths, seed=3, global_size=8, bucket_batches=1)
    world = DistContext(0, 1, torch.device("cpu"), Precision.fp32)
    strategy = Strategy(config, world)
    strategy.prepare(model.train())
    strategy.make_optimizer(config.optimizer)
    run = Run(config, JobDir("/nonexistent"), world, model, 20, order.steps_per_epoch, micro_batch=micro)
    return run, strategy, strategy.optimizer, order, data, lambda: False


def take(steps, rates):
    """Take steps as the loop does; return losses and norms."""
    losses, norms = [], []
    while rates:
        taken = steps.take(rates[: steps.most])
        rates = rates[steps.most :]
        steps.run.step += len(taken.losses)
        losses, norms = losses + taken.losses, norms + taken.norms
    return losses, norms


def state(model, optimizer):
    moments = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    return [tensor.detach().clone() for tensor in [*model.state_dict().values(), *moments]]


@pytest.mark.parametrize("name", list(OptimizerName))
@pytest.mark.parametrize("micro", [8, 3])
@pytest.mark.parametrize("kind", ["bert", "own"])
def test_captured_steps_are_the_eager_ones(kind, micro, name, tiny, rows_of):
    """20 rows, global batch 8: two whole steps and one of 4 rows an epoch, at once or in parts that do not divide
    them; clipping has something to do."""
    data, optimizer = rows_of(20), {"name": name.value, "clip_norm": 0.5}
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(tiny() if kind == "bert" else Words(60, 3))
    eager = EagerStep(*given(models[0], data, micro=micro, optimizer=optimizer))
    captured = CapturedSteps(*given(models[1], data, micro=micro, optimizer=optimizer))
    before = state(models[1], captured.optimizer)
    assert captured.prepare() == ""
    assert all(map(torch.equal, before, state(models[1], captured.optimizer))), "trying steps out changes nothing"
    assert captured.whole == (name is OptimizerName.adamw)
    expected, found = take(eager, RATES), take(captured, RATES)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)
    both = zip(state(models[0], eager.optimizer), state(models[1], captured.optimizer), strict=True)
    for one, other in both:
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)
    assert 0 < captured.padding_share < 0.7
    rates = [[group["lr"] for group in steps.optimizer.param_groups] for steps in (eager, captured)]
    assert rates[0] == rates[1], "a checkpoint holds the same"


@pytest.mark.parametrize("augment", [{}, {"crop": 0.3, "flip": 0.5}, {"mixup": 0.4}])
def test_images_are_handed_on_as_shades_and_learned_as_the_processors_numbers(augment):
    """Losses are those of the processor's numbers to the bit; buffers hold bytes where nothing is mixed."""
    contents = pa.array([encoded(pixels(row, (20 + row, 30))) for row in range(20)], pa.large_binary())
    losses = []
    for kind, shades in ((EagerStep, False), (EagerStep, True), (CapturedSteps, True)):
        made = Pixels(transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}))
        made.shades = made.shades if shades else None
        data = TokenTable(pa.table({"image": contents, "labels": np.arange(20) % 3}), Padding(pixels=made))
        data.images.augmentation = Augmentation(AugmentConfig(**augment), 5, 3) if augment else None
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=3, **sizes)
        loss = {"head": Head(loss=torch.nn.functional.cross_entropy)} if "mixup" in augment else {}
        model = transformers.ViTForImageClassification(config)
        steps = kind(*given(model, data, loader={"num_workers": 0}), **loss)
        if kind is CapturedSteps:
            assert steps.prepare() == ""
        losses.append(take(steps, RATES))
    assert losses[0] == losses[1]
    np.testing.assert_allclose(losses[2], losses[0], atol=1e-5, rtol=1e-4)
    held = {shape.inputs["pixel_values"].dtype for shape in steps.shapes.values()}
    assert held == {torch.float32 if "mixup" in augment else torch.uint8}


def test_a_run_can_be_cut_anywhere_and_dropout_differs_between_steps(tiny, rows_of):
    data, at_once, cut = rows_of(20), tiny("roberta", dropout=0.3), tiny("roberta", dropout=0.3)
    whole = CapturedSteps(*given(at_once, data))
    assert whole.prepare() == ""
    expected = take(whole, RATES)
    parts = given(cut, data)
    first = take(CapturedSteps(*parts), RATES[:2])
    second = CapturedSteps(*parts)
    assert second.prepare() == ""
    rest = take(second, RATES[2:])
    assert [one + other for one, other in zip(first, rest, strict=True)] == list(expected)
    assert all(map(torch.equal, at_once.state_dict().values(), cut.state_dict().values()))
    still = CapturedSteps(*given(tiny("roberta", dropout=0.5), rows_of(8)))
    losses, _ = take(still, [0.0, 0.0])
    assert losses[0] != losses[1], "the same rows and weights in another step: another mask"


@pytest.mark.parametrize("name", list(OptimizerName))
def test_a_step_whose_loss_is_not_finite_changes_nothing(name, rows_of):
    torch.manual_seed(0)
    model = Words(60, 3)
    steps = CapturedSteps(*given(model, rows_of(20), optimizer={"name": name.value}))
    assert steps.prepare() == ""
    take(steps, RATES[:1])
    right, before = model.forward, state(model, steps.optimizer)

    def broken(*args, **kwargs):
        output = right(*args, **kwargs)
        return {**output, "loss": output["loss"] * float("nan")}

    model.forward = broken
    losses, _ = take(steps, RATES[1:2])
    assert np.isnan(losses[0]) and all(map(torch.equal, before, state(model, steps.optimizer)))


def test_weights_that_take_no_part_stay_what_they_are(rows_of):
    """Decay included: they have no gradient, which is not one of 0."""
    model = Words(60, 3, extra="none")
    before = model.extra.weight.detach().clone()
    for micro in (8, 3):
        steps = CapturedSteps(*given(model, rows_of(20), micro=micro))
        assert steps.prepare() == ""
        take(steps, RATES[:3])
        assert torch.equal(before, model.extra.weight) and model.extra.weight not in steps.optimizer.state


def test_statistics_of_a_batch_normalization_are_those_of_the_steps_taken(rows_of):
    models = [Words(60, 3, normed=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    captured = CapturedSteps(*given(models[1], rows_of(20)))
    assert captured.prepare() == ""
    take(EagerStep(*given(models[0], rows_of(20))), RATES)
    take(captured, RATES)
    for one, other in zip(models[0].buffers(), models[1].buffers(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_an_average_of_the_weights_sees_every_step(tiny, rows_of):
    assert CapturedSteps(*given(tiny(), rows_of(20))).most > 1
    assert CapturedSteps(*given(tiny(), rows_of(20), ema={"decay": 0.9})).most == 1


def test_a_graph_that_does_not_fit_its_rows_changes_nothing_and_they_are_taken_eagerly(rows_of):
    """A replay says so on the device; the steps after it, in the same block, are held back too."""
    models = [Words(60, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    captured = CapturedSteps(*given(models[1], rows_of(20)))
    assert captured.prepare() == ""
    right, calls = captured._run, []

    def run(shape, add, update):
        calls.append(captured.run.step)
        if len(calls) == 3:
            captured.changed.fill_(1)
        right(shape, add, update)

    captured._run = run
    expected = take(EagerStep(*given(models[0], rows_of(20))), RATES)
    found = take(captured, RATES)
    assert len(calls) == 6 and captured.changed == 0
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)
    assert take(captured, RATES[:1]) and len(calls) == 7, "the next block is captured again"


def test_widths_serve_all_steps_and_depend_on_nothing_but_the_run(rows_of):
    data = rows_of(200)
    order = SampleOrder(data.lengths, seed=3, global_size=8, bucket_batches=4)
    found = [Widths.plan(order, lambda step: order.micro_batches(step, 0, 1, 4), steps, 8) for steps in (60, 60)]
    assert found[0].chosen == found[1].chosen == sorted(found[0].chosen) and found[0].chosen[-1] == 24
    for rows in order.epoch(2):
        assert data.lengths[rows].max() <= found[0](rows) < data.lengths[rows].max() + 8
    found[0].chosen = [8]
    assert found[0](np.array([int(data.lengths.argmax())])) == COARSE, "longer than all that were planned"


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"strategy": {"name": "zero2"}}, "strategy=zero2"),
        ({"strategy": {"name": "fsdp", "offload": "parameters"}}, "strategy.offload=parameters"),
        ({"compile": {"mode": "on"}}, "compile.mode"),
        ({"batch": {"auto": True}}, "batch.auto=true"),
        ({"optimizer": {"gradient_noise": 0.01}}, "optimizer.gradient_noise"),
        ({"debug": {"profile_steps": 2}}, "profiler"),
        ({"strategy": {"activation_checkpointing": True}}, "activation_checkpointing"),
    ],
)
def test_what_it_does_not_apply_to(groups, reason, tiny, rows_of):
    config = from_dict(RunConfig, groups)
    assert reason in not_captured_reason(config, DistContext(0, 1, torch.device("cuda"), Precision.bf16), rows_of(4))


def test_fsdp_on_several_gpus_is_captured_where_that_is_asked_for(rows_of):
    """Until somebody has tried it there; on one it is by itself."""
    for size, packed, reason in ((2, "auto", "compute.packed=on does it"), (2, "on", ""), (1, "auto", "")):
        config = from_dict(RunConfig, {"strategy": {"name": "fsdp"}, "compute": {"packed": packed}})
        world = DistContext(0, size, torch.device("cuda"), Precision.bf16)
        assert not_captured_reason(config, world, rows_of(4)).endswith(reason or "")
        assert bool(not_captured_reason(config, world, rows_of(4))) == bool(reason)


def test_the_choice_and_its_reason(tiny, rows_of, caplog):
    """Packed where there is such a form, else captured, else eager; one line says which and why."""
    caplog.set_level("INFO")
    assert type(select_step.open_steps(*given(tiny(), rows_of(20)))) is PackedTrainStep
    own = given(Words(60, 3), rows_of(20))
    assert type(select_step.open_steps(*own)) is CapturedSteps and own[0].report["steps_taken"] == "captured"
    assert (
        "captured with padding" in caplog.messages[-1]
        and "its kernel is for half precision on a GPU" in caplog.messages[-1]
    )


@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "resumed"])
def test_where_capture_fails_steps_are_eager_and_nothing_has_changed(begun, tiny, rows_of, monkeypatch, caplog):
    """As on a GPU, where it fails in the middle of a step."""

    def broken(self, shape, variant):
        self._run(shape, *variant)
        raise NotCapturable("its forward pass waits for the device")

    parts = given(Words(60, 3, normed=True), rows_of(20), compute={"packed": "auto"})
    run, _, optimizer, *_ = parts
    if begun:
        take(EagerStep(*parts), RATES[:2])
    before, random = state(run.model, optimizer), torch.get_rng_state()
    monkeypatch.setattr(CapturedSteps, "_captured", broken)
    monkeypatch.setattr(select_step, "_is_wanted", lambda run: True)
    steps = select_step.open_steps(*parts)
    assert type(steps) is EagerStep and len(caplog.messages) == 1
    assert "its forward pass waits for the device" in caplog.messages[0]
    assert run.report["steps_taken"].startswith("plain: its forward pass waits")
    assert len(before) == len(state(run.model, optimizer)) and all(
        map(torch.equal, before, state(run.model, optimizer))
    )
    assert torch.equal(random, torch.get_rng_state()) and all(p.grad is None for p in run.model.parameters())


@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_a_captured_step_that_is_wrong_is_not_used(fault, rows_of, monkeypatch):
    model = Words(60, 3)
    steps = CapturedSteps(*given(model, rows_of(20)))
    right = CapturedSteps._run

    def wrong(self, shape, add, update):
        right(self, shape, add, update)
        if fault == "loss":
            self.loss.add_(1)
        elif self.grads:
            self.grads[-1].mul_(2)

    monkeypatch.setattr(CapturedSteps, "_run", wrong)
    assert f"the captured {fault}" in steps.prepare()
    assert not steps.optimizer.state and all(p.grad is None for p in model.parameters())


def test_a_long_run_pays_for_compiling():
    """By steps or by tokens."""
    found = []
    for total, longest in ((499, 22), (500, 22), (36, 10_000), (38, 10_000)):
        order = SampleOrder(np.full(20, longest), seed=3, global_size=8)
        found.append(is_worth_it(total, order))
    assert found == [False, True, False, True]


def test_t5s_bias_is_laid_out_for_fused_attention(rows_of):
    """In eager steps too, which are held against captured ones, and those of a run that was resumed."""
    small = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 60}
    model = transformers.T5ForSequenceClassification(transformers.T5Config(**small, decoder_start_token_id=0))
    attention = model.transformer.encoder.block[0].layer[0].SelfAttention
    assert attention.compute_bias(5, 5).stride(-1) != 1
    CapturedSteps(*given(model, rows_of(20)))
    assert attention.compute_bias(5, 5).stride(-1) == 1
