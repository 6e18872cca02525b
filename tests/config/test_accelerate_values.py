"""Values of an `accelerate config` file of another type than their option: one line that names the option."""

import json
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError
from skytune.config.accelerate_file import translate

WHOLE = "must be a whole number"
GROUP = "must be a group of options"
FSDP = {"distributed_type": "FSDP"}
ZERO = {"distributed_type": "DEEPSPEED", "num_processes": 2}


def deepspeed(**options: Any) -> dict[str, Any]:
    return {**ZERO, "deepspeed_config": options}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_processes": "two"}, f"num_processes=two: {WHOLE}"),
    ({"num_processes": 2.5}, f"num_processes=2.5: {WHOLE}"),
    ({"num_processes": True}, f"num_processes=True: {WHOLE}"),
    ({"num_machines": "two"}, f"num_machines=two: {WHOLE}"),
    ({"num_machines": -1}, "num_machines=-1: must be at least 1"),
    ({"num_machines": 2, "machine_rank": "x"}, f"machine_rank=x: {WHOLE}"),
    ({"num_machines": 2, "main_process_port": "x"}, f"main_process_port=x: {WHOLE}"),
    ({"max_restarts": "x"}, f"max_restarts=x: {WHOLE}"),
    ({**FSDP, "fsdp_config": {"fsdp_version": "x"}}, f"fsdp_version=x: {WHOLE}"),
    ({**FSDP, "fsdp_config": {"fsdp_offload_params": "x"}}, "fsdp_offload_params=x: must be true or false"),
    ({**FSDP, "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "A (=)"}}, "fsdp_transformer_layer_cls_to_wrap="),
    ({**FSDP, "fsdp_config": {1: 2}}, "fsdp_config.1=2: is not known"),
    ({"parallelism_config": {"parallelism_config_tp_size": "x"}}, f"parallelism_config_tp_size=x: {WHOLE}"),
    ({"parallelism_config": {"dp_shard_size": "x"}}, f"parallelism_config_dp_shard_size=x: {WHOLE}"),
    ({"fsdp_config": True}, f"fsdp_config=True: {GROUP}"),
    ({"deepspeed_config": True}, f"deepspeed_config=True: {GROUP}"),
    ({"parallelism_config": True}, f"parallelism_config=True: {GROUP}"),
    ({"fp8_config": True}, f"fp8_config=True: {GROUP}"),
    ({"dynamo_config": "INDUCTOR"}, f"dynamo_config=INDUCTOR: {GROUP}"),
    ({"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_dynamic": 3}}, "dynamo_use_dynamic=3: must be true"),
    (deepspeed(gradient_clipping="x"), "gradient_clipping=x: must be a number"),
    (deepspeed(zero_stage="x"), f"zero_stage=x: {WHOLE}"),
    (deepspeed(zero_stage=True), f"zero_stage=True: {WHOLE}"),
    (deepspeed(zero3_init_flag="x"), "zero3_init_flag=x: must be true or false"),
]


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_another_type_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate(values)
    assert str(caught.value).startswith(f"launch.accelerate_config: {said}")
    assert "\n" not in str(caught.value)


ZERO_2 = {"stage": 2}
IN_A_FILE: list[tuple[Any, str]] = [
    ([1], "deepspeed_config_file="),
    ("a", "deepspeed_config_file="),
    ({"zero_optimization": True}, f"zero_optimization=True: {GROUP}"),
    (
        {"zero_optimization": {"stage": 3, "offload_optimizer": True}},
        f"zero_optimization.offload_optimizer=True: {GROUP}",
    ),
    ({"optimizer": "adam"}, f"optimizer=adam: {GROUP}"),
    ({"optimizer": {"params": {"lr": "fast"}}}, "optimizer.params.lr=fast: must be a number"),
    ({"optimizer": {"params": {"betas": 0.9}}}, "optimizer.params.betas=0.9: must be two numbers"),
    ({"fp16": True}, f"fp16=True: {GROUP}"),
    ({"bf16": {"enabled": "maybe"}}, "bf16.enabled=maybe: must be true or false"),
    ({"scheduler": {"type": "WarmupLR", "params": [1]}}, f"scheduler.params=[1]: {GROUP}"),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "x"}}},
        f"scheduler.params.warmup_num_steps=x: {WHOLE}",
    ),
    ({"gradient_clipping": "x"}, "gradient_clipping=x: must be a number"),
    ({"wall_clock_breakdown": "x"}, "wall_clock_breakdown=x: must be true or false"),
]


def in_a_file(tmp_path: Path, content: Any, **values: Any) -> Any:
    (tmp_path / "ds.json").write_text(json.dumps(content))
    return translate({**ZERO, **values, "deepspeed_config": {"deepspeed_config_file": "ds.json"}}, tmp_path)


@pytest.mark.parametrize(("content", "said"), IN_A_FILE, ids=[said for _, said in IN_A_FILE])
def test_another_type_in_a_deepspeed_file_is_refused_by_name(tmp_path: Path, content: Any, said: str) -> None:
    whole = {"zero_optimization": ZERO_2, **content} if isinstance(content, dict) else content
    with pytest.raises(ConfigError) as caught:
        in_a_file(tmp_path, whole)
    assert str(caught.value).startswith(f"launch.accelerate_config: {said}")
    assert "\n" not in str(caught.value)


MEANT: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "use_cpu, a text": ({"use_cpu": "false"}, {"compute": None}),
    "use_cpu, yes": ({"use_cpu": "yes"}, {"compute": "cpu"}),
    "fp16 of old, a text": ({"fp16": "false"}, {"precision": "fp32"}),
    "a number as a text": ({"num_processes": "2"}, {"launch.num_processes": "2"}),
    "a whole number as YAML may have it": ({"num_processes": 2.0}, {"launch.num_processes": "2"}),
    "gpu_ids, a list": ({"gpu_ids": [0, 1], "num_processes": 2}, {"launch.gpu_ids": "'0,1'"}),
    "gpu_ids, an empty list": ({"gpu_ids": []}, {"launch.gpu_ids": None}),
    "no kind": ({"distributed_type": None}, {"launch.num_processes": "1"}),
}


@pytest.mark.parametrize("name", MEANT)
def test_a_value_means_what_it_says(name: str) -> None:
    values, wanted = MEANT[name]
    found = translate(values)
    assert {key: found.get(key) for key in wanted} == wanted


def batch(whole: Any = "auto", micro: Any = "auto", steps: Any = "auto") -> dict[str, Any]:
    return {
        "zero_optimization": ZERO_2,
        "train_batch_size": whole,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }


IN_A_FILE_MEANT: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "rows as a text": (batch(micro="8"), {"batch.micro_size": "8", "batch.global_size": "16"}),
    "all three": (batch(64, 8, 4), {"batch.micro_size": "8", "batch.global_size": "64"}),
    "rows in all, and steps": (batch(64, steps=4), {"batch.micro_size": "8", "batch.global_size": "64"}),
    "rows in all, and at once": (batch(64, 8), {"batch.micro_size": "8", "batch.global_size": "64"}),
    "bf16, a text": ({"bf16": {"enabled": "true"}}, {"precision": "bf16"}),
    "fp16 off": ({"fp16": {"enabled": False}}, {"precision": "fp32"}),
    "fp16 off, bf16 on": ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, {"precision": "bf16"}),
    "left to accelerate": ({"fp16": {"enabled": "auto"}}, {"precision": None}),
}


@pytest.mark.parametrize("name", IN_A_FILE_MEANT)
def test_a_value_of_a_deepspeed_file_means_what_it_says(tmp_path: Path, name: str) -> None:
    content, wanted = IN_A_FILE_MEANT[name]
    found = in_a_file(tmp_path, {"zero_optimization": ZERO_2, **content})
    assert {key: found.get(key) for key in wanted} == wanted


def test_accelerates_precision_goes_where_deepspeed_switches_another_off(tmp_path: Path) -> None:
    content = {"zero_optimization": ZERO_2, "fp16": {"enabled": False}}
    assert in_a_file(tmp_path, content, mixed_precision="bf16").get("precision") == "bf16"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (batch(32, 8, 4), r"train_batch_size=32: does not go with .*size_per_gpu 8 \* .*steps 4 \* processes 2 \(64\)"),
        (batch(30, 4), r"train_batch_size=30: does not go with .*size_per_gpu 4 \* processes 2 \(8\)"),
        (batch(30, steps=4), r"train_batch_size=30: does not go with .*steps 4 \* processes 2 \(8\)"),
        (batch(micro=0), "train_micro_batch_size_per_gpu=0: must be at least 1"),
        (batch(micro=2.5), "train_micro_batch_size_per_gpu=2.5: must be a whole number"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled=True: fp16.enabled"),
    ],
)
def test_what_deepspeed_refuses_is_refused(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^launch.accelerate_config: {said}"):
        in_a_file(tmp_path, {"zero_optimization": ZERO_2, **content})
