"""Which number format a device really computes in (case 21), and that it does."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from skytune.config import ConfigError, Precision, RunConfig, UserError, from_dict
from skytune.distributed.capabilities import check_precision
from skytune.distributed.context import DistContext
from skytune.distributed.precision import Ability, ability, resolve
from skytune.training.strategy import build_strategy

CPU = Ability("cpu", "CPU", bf16=True, fp8_lacks="a CPU has none")
MAC = Ability("mps", "Metal device", bf16=True, fp8_lacks="Metal has none")
OLD_MAC = Ability("mps", "Metal device", fp8_lacks="Metal has none")
KEPLER = Ability("cuda", "Tesla K80", fp8_lacks="Tesla K80 has none")
VOLTA = Ability("cuda", "Tesla V100", fp16=True, fp8_lacks="Tesla V100 has none")
AMPERE = Ability("cuda", "A100", bf16=True, fp16=True, tf32=True, fp8_lacks="A100 has none")
HOPPER = Ability("cuda", "H100", bf16=True, fp16=True, tf32=True, fp8=True)
DEVICES = {
    "cpu": CPU,
    "mac": MAC,
    "old-mac": OLD_MAC,
    "kepler": KEPLER,
    "volta": VOLTA,
    "ampere": AMPERE,
    "hopper": HOPPER,
}

TABLE = {
    #        cpu     mac     old-mac kepler  volta   ampere  hopper     (! refused, ? told)
    "auto": ["fp32", "fp32", "fp32", "fp32", "fp32", "bf16", "bf16"],
    "fp32": ["fp32", "fp32", "fp32", "fp32", "fp32", "fp32", "fp32"],
    "tf32": ["fp32?", "fp32?", "fp32?", "fp32?", "fp32?", "tf32", "tf32"],
    "bf16": ["bf16", "bf16", "fp32?", "fp32?", "fp16?", "bf16", "bf16"],
    "fp16": ["!", "bf16?", "fp32?", "fp32?", "fp16", "fp16", "fp16"],
    "fp8": ["!", "!", "!", "!", "!", "!", "fp8"],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", TABLE)
def test_what_each_device_gets(wanted: str, device: str) -> None:
    expected = TABLE[wanted][list(DEVICES).index(device)]
    if expected == "!":
        with pytest.raises(UserError, match=f"precision={wanted}: .*use precision="):
            resolve(Precision(wanted), DEVICES[device])
        return
    found = resolve(Precision(wanted), DEVICES[device])
    assert found.requested.value == wanted
    assert found.effective.value == expected.removesuffix("?")
    assert bool(found.note) == expected.endswith("?")
    if found.note:
        assert "\n" not in found.note
        assert DEVICES[device].name in found.note
        assert found.effective.value in found.note


def test_this_cpu() -> None:
    assert ability("cpu") == CPU


def test_refused_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="precision=fp16: a CPU"):
        check_precision(Precision.fp16, "cpu")
    with pytest.raises(UserError, match="precision=fp8: a CPU"):
        check_precision(Precision.fp8, "cpu")
    check_precision(Precision.bf16, "cpu")
    with pytest.raises(ConfigError, match="precision=fp16 is not supported on compute=cpu"):
        from_dict(RunConfig, {"precision": "fp16", "compute": {"device": "cpu"}})


def test_bf16_computes_in_bf16(forked: None, run_job: Callable[..., Any]) -> None:
    """Seen before: training in fp32 under that name, because a wrapper had been lost."""
    common = {"model": {"dropout": 0.0}, "max_steps": 3, "log": {"every_steps": 1}, "optimizer": {"lr": 1e-3}}
    full, half = run_job(precision="fp32", **common), run_job(precision="bf16", **common)
    assert (half.result["precision"], half.result["precision_requested"]) == ("bf16", "bf16")
    assert (full.result["precision"], full.result["precision_requested"]) == ("fp32", "fp32")

    def losses(done: Any) -> list[float]:
        return [record["loss"] for record in done.history if record["kind"] == "step"]

    assert losses(half) == pytest.approx(losses(full), abs=0.02)
    assert min(abs(a - b) for a, b in zip(losses(half), losses(full), strict=True)) > 0


@pytest.mark.parametrize("name", ["single", "fsdp", "optimizer_sharding"])
def test_overflow_skips_the_step_and_halves_the_scale(name: str) -> None:
    """A scaler works on any device; a CPU stands in for a GPU here."""
    config = from_dict(RunConfig, {"strategy": {"name": name}, "optimizer": {"name": "sgd", "lr": 0.5}})
    strategy = build_strategy(config, DistContext(0, 1, torch.device("cpu"), Precision.fp16, Precision.fp16))
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2)))
        strategy.prepare(model)
        strategy.autocast = torch.enable_grad  # type: ignore[method-assign,assignment]
        strategy.make_optimizer(config.optimizer)

        def step(factor: float) -> tuple[bool, float, dict[str, Any]]:
            module = strategy.module
            inputs = torch.ones(3, 4, dtype=torch.float16 if name == "fsdp" else torch.float32)
            strategy.backward(module(inputs).float().square().mean() * factor)
            norm = strategy.clip(1.0)
            taken = strategy.step()
            scaling = strategy.scaling()
            assert norm is not None
            assert scaling is not None
            return taken, float(norm), scaling

        def weights() -> dict[str, torch.Tensor]:
            state = strategy.state()
            return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for k, v in state.items()}

        start = weights()
        taken, norm, scaling = step(float("inf"))
        assert not taken
        assert not norm < float("inf")
        assert scaling["scale"] == 2.0**15
        assert all(torch.equal(value, start[key]) for key, value in weights().items())
        taken, norm, _ = step(1e-3)
        assert taken
        assert 0 < norm < 10  # of the unscaled gradient
        assert any(not torch.equal(value, start[key]) for key, value in weights().items())
        strategy.load_scaling({**scaling, "scale": 64.0})
        assert strategy.scaling()["scale"] == 64.0  # type: ignore[index]
    finally:
        strategy.close()


OWN = '''
import torch

SEEN = []


class Spy(torch.nn.Module):
    """Notes the number format of its matrix products."""

    def __init__(self, num_labels, vocab_size):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(vocab_size, 8)
        self.head = torch.nn.Linear(8, num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids))
        SEEN.append((self.training, str(logits.dtype)))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits.float(), labels)
        return {"loss": loss, "logits": logits}
'''


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "torch.float32"), ("bf16", "torch.bfloat16")])
def test_training_and_validation_compute_in_it(
    run_job: Any, here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: str
) -> None:
    (tmp_path / "precision_own.py").write_text(OWN)
    monkeypatch.setattr("skytune.training.trainer.check_padding", lambda *_: "")  # which computes on the CPU
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("precision_own", None)
    run_job(precision=precision, max_steps=2, model={"_target_": "precision_own.Spy"})
    seen = sys.modules.pop("precision_own").SEEN
    assert {training for training, _ in seen} == {True, False}
    assert {kind for _, kind in seen} == {dtype}
