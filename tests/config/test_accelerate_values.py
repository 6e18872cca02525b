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
