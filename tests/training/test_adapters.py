"""Training an adapter: checkpoints hold it alone, and a run that is cut short goes on to the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("peft")

LORA = {"model": {"lora": {"rank": 2}}, "epochs": 2, "log": {"every_steps": 1}, "optimizer": {"lr": 1e-2}}


def adapter(job: Any) -> dict[str, np.ndarray]:
    return load_file(job.model / "adapter_model.safetensors")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("bits", [None, 4])
def test_a_run_that_is_cut_short_goes_on(
    run_job: Any, kept: Any, cut_back: Any, tiny_model: Path, bits: int | None
) -> None:
    if bits:
        pytest.importorskip("bitsandbytes")
    lora = {**LORA, "model": {"lora": {"rank": 2, "bits": bits}}}
    whole = run_job(**lora, checkpoint=kept())
    expected, first = adapter(whole.job), [r["loss"] for r in whole.history if r["kind"] == "step"]
    run = cut_back(6)
    stored = set().union(*(load_file(file) for file in (run / "step-00000006").glob("model*.safetensors")))
    base = set(load_file(tiny_model / "model.safetensors"))
    assert stored and not {name.removeprefix("bert.").replace(".base_layer", "") for name in stored} & base
    again = run_job(**lora, checkpoint=kept(), resume="required")
    assert again.result["resumed_from"] == 6 and first[6:] == [
        r["loss"] for r in again.history if r["kind"] == "step" and r["step"] > 6
    ]
    found = adapter(again.job)
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)
    assert again.result["trainable_parameters"] < 0.3 * again.result["parameters"]
    assert first[-1] < first[0]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_the_same(run_job: Any, kept: Any, strategy: str) -> None:
    still = {**LORA, "model": {"lora": {"rank": 2}, "dropout": 0.0}, "epochs": 1}
    alone = run_job(**still)
    both = run_job(**still, launch={"num_processes": 2}, strategy={"name": strategy}, checkpoint=kept(), name="both")
    found, expected = adapter(both.job), adapter(alone.job)
    assert found.keys() == expected.keys()
    assert max(float(np.abs(found[name] - expected[name]).max()) for name in expected) <= 5e-5
    shares = list((Path(both.result["run_folder"]).parents[2] / "store").rglob("model*.safetensors"))
    assert shares and not any("word_embeddings" in name for file in shares for name in load_file(file))
