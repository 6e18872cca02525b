"""A person's `accelerate config` file: every option is honoured, said to change nothing, or refused by name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytune.config import ConfigError, RunConfig
from skytune.config.accelerate_import import translate
from skytune.config.compose import compose_run

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

GPUS = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 1}
FSDP = {**GPUS, "distributed_type": "FSDP"}
ZERO = {**GPUS, "distributed_type": "DEEPSPEED"}
TWO = {**GPUS, "num_processes": 8, "num_machines": 2, "main_process_ip": "10.0.0.1", "main_process_port": 29600}


def fsdp(**options: Any) -> dict[str, Any]:
    return {**FSDP, "fsdp_config": options}


def zero(**options: Any) -> dict[str, Any]:
    return {**ZERO, "deepspeed_config": {"zero_stage": 2, **options}}


def dynamo(**options: Any) -> dict[str, Any]:
    return {**GPUS, "dynamo_config": {f"dynamo_{key}": value for key, value in options.items()}}


HONOURED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one": ({"distributed_type": "NO"}, {"launch.num_processes": 1}),
    "one, more said": ({"distributed_type": "NO", "num_processes": 1, "use_cpu": True}, {"compute.device": "cpu"}),
    "gpus": (GPUS, {"launch.num_processes": 4, "compute.device": "cuda", "launch.nodes": 1}),
    "cpus": ({**GPUS, "distributed_type": "MULTI_CPU"}, {"launch.num_processes": 4, "compute.device": "cpu"}),
    "cpu in spite of gpus": ({**GPUS, "use_cpu": True}, {"compute.device": "cpu"}),
    "mps": ({"distributed_type": "MPS", "num_processes": 1}, {"compute.device": "mps"}),
    "as many as there are": ({**GPUS, "num_processes": -1}, {"launch.num_processes": "auto"}),
    "gpu_ids": ({**GPUS, "num_processes": 2, "gpu_ids": "0, 2"}, {"launch.gpu_ids": "0,2"}),
    "gpu_ids, a number": ({**GPUS, "num_processes": 1, "gpu_ids": 3}, {"launch.gpu_ids": "3"}),
    "gpu_ids, all": ({**GPUS, "gpu_ids": "all"}, {"launch.gpu_ids": None}),
    "no": ({**GPUS, "mixed_precision": "no"}, {"precision": "fp32"}),
    "no, as YAML reads it": ({**GPUS, "mixed_precision": False}, {"precision": "fp32"}),
    "bf16": ({**GPUS, "mixed_precision": "bf16"}, {"precision": "bf16"}),
    "fp16": ({**GPUS, "mixed_precision": "fp16"}, {"precision": "fp16"}),
    "two machines": (
        {**TWO, "machine_rank": 1, "rdzv_backend": "static", "same_network": True},
        {
            "launch.nodes": 2,
            "launch.node_rank": 1,
            "launch.master_addr": "10.0.0.1",
            "launch.master_port": 29600,
            "launch.num_processes": 8,
        },
    ),
    "rdzv of one machine": ({**GPUS, "rdzv_backend": "c10d"}, {"launch.nodes": 1}),
    "no restarts": ({**GPUS, "max_restarts": 0}, {}),
    "fsdp 2": (
        fsdp(
            fsdp_version=2,
            fsdp_reshard_after_forward=True,
            fsdp_offload_params=False,
            fsdp_auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            fsdp_transformer_layer_cls_to_wrap="BertLayer",
            fsdp_state_dict_type="SHARDED_STATE_DICT",
            fsdp_activation_checkpointing=True,
        ),
        {
            "strategy.name": "fsdp",
            "strategy.sharding": "full",
            "strategy.wrap": "BertLayer",
            "strategy.activation_checkpointing": True,
            "strategy.offload": "none",
        },
    ),
    "fsdp 2, kept gathered": (fsdp(fsdp_version=2, fsdp_reshard_after_forward=False), {"strategy.sharding": "grad_op"}),
    "fsdp 1": (
        fsdp(
            fsdp_sharding_strategy="SHARD_GRAD_OP",
            fsdp_offload_params=True,
            fsdp_backward_prefetch="BACKWARD_PRE",
            fsdp_use_orig_params=True,
            fsdp_forward_prefetch=False,
            fsdp_sync_module_states=True,
        ),
        {"strategy.name": "fsdp", "strategy.sharding": "grad_op", "strategy.offload": "parameters"},
    ),
    "fsdp 1, a number": (fsdp(fsdp_sharding_strategy=1), {"strategy.sharding": "full"}),
    "fsdp, hybrid": (fsdp(fsdp_sharding_strategy="HYBRID_SHARD"), {"strategy.sharding": "hybrid"}),
    "fsdp, not cut up": (fsdp(fsdp_sharding_strategy="NO_SHARD"), {"strategy.name": "ddp"}),
    "zero 0": (zero(zero_stage=0), {"strategy.name": "ddp"}),
    "zero 1": (zero(zero_stage=1), {"strategy.name": "zero1"}),
    "zero 2": (
        zero(
            offload_optimizer_device="cpu",
            offload_param_device="none",
            gradient_clipping=0.5,
            gradient_accumulation_steps=1,
            deepspeed_multinode_launcher="standard",
        ),
        {"strategy.name": "zero2", "strategy.offload": "optimizer", "optimizer.clip_norm": 0.5},
    ),
    "zero 3": (
        zero(zero_stage=3, offload_optimizer_device="cpu", offload_param_device="cpu"),
        {"strategy.name": "zero3", "strategy.offload": "parameters"},
    ),
    "dynamo, no": (dynamo(backend="NO"), {"compile.mode": "off"}),
    "dynamo": (dynamo(backend="INDUCTOR"), {"compile.mode": "on", "compile.shapes": None}),
    "dynamo of old": ({**GPUS, "dynamo_backend": "INDUCTOR"}, {"compile.mode": "on"}),
    "dynamo, graphs": (dynamo(backend="INDUCTOR", mode="reduce-overhead"), {"compile.mode": "reduce_overhead"}),
    "dynamo, tuned": (dynamo(backend="INDUCTOR", mode="max-autotune"), {"compile.mode": "max_autotune"}),
    "all that is not used": (
        {
            **GPUS,
            "debug": False,
            "downcast_bf16": "no",
            "enable_cpu_affinity": False,
            "main_training_function": "main",
            "tpu_env": [],
            "tpu_use_cluster": False,
            "tpu_use_sudo": False,
            "tpu_name": None,
            "commands": None,
            "megatron_lm_config": {},
            "mpirun_config": {},
            "fsdp_config": {},
            "deepspeed_config": {},
            "fp8_config": {},
            "dynamo_config": {},
            "parallelism_config": {},
            "tpu_vm": [""],
        },
        {"launch.num_processes": 4},
    ),
}


def composed(tmp_path: Path, values: dict[str, Any], *words: str) -> RunConfig:
    file = tmp_path / "default_config.yaml"
    file.write_text(yaml.safe_dump(values))
    return compose_run(CONFIGS, [f"launch.accelerate_config={file}", *words])


def look(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return getattr(config, "value", config)


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_honoured(name: str, tmp_path: Path) -> None:
    values, wanted = HONOURED[name]
    config = composed(tmp_path, values)
    assert {key: look(config, key) for key in wanted} == wanted
    assert config.launch.accelerate_config == str(tmp_path / "default_config.yaml")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sagemaker": ({**GPUS, "compute_environment": "AMAZON_SAGEMAKER"}, "AMAZON_SAGEMAKER: .*SkyPilot"),
    "tpu": ({**GPUS, "distributed_type": "XLA"}, "distributed_type=XLA: .*taken are NO, MULTI_GPU"),
    "tpu, a detail": ({**GPUS, "tpu_name": "pod"}, "tpu_name=pod: .*CUDA"),
    "megatron": ({**GPUS, "megatron_lm_config": {"megatron_lm_tp_degree": 2}}, "megatron_lm_config=.*leave it out"),
    "a new option": ({**GPUS, "entangled": True}, "entangled=True: is not taken from a file: leave it out"),
    "restarts": ({**GPUS, "max_restarts": 3}, "max_restarts=3: .*goes on from the checkpoint"),
    "rdzv": ({**TWO, "rdzv_backend": "c10d"}, "rdzv_backend=c10d: .*launch.master_addr"),
    "affinity": ({**GPUS, "enable_cpu_affinity": True}, "enable_cpu_affinity=True: .*numactl"),
    "mpirun": ({**GPUS, "mpirun_config": {"mpirun_ccl": "1"}}, "mpirun_config=.*launch.hosts"),
    "function": ({**GPUS, "main_training_function": "train"}, "main_training_function=train: .*leave it out"),
    "precision": ({**GPUS, "mixed_precision": "fp4"}, "mixed_precision=fp4: taken are no, false, fp16, bf16, fp8"),
    "fp8": ({**GPUS, "fp8_config": {"backend": "TE"}}, "fp8_config=.*: .*precision=fp8"),
    "dynamo": (dynamo(backend="EAGER"), "dynamo_backend=EAGER: taken are no, inductor"),
    "dynamo, mode": (dynamo(backend="INDUCTOR", mode="max"), "dynamo_mode=max: taken are default"),
    "dynamo, fullgraph": (dynamo(backend="INDUCTOR", use_fullgraph=True), "dynamo_use_fullgraph=True: .*compile=on"),
    "fsdp, version": (fsdp(fsdp_version=3), "fsdp_version=3"),
    "fsdp, sharding": (fsdp(fsdp_sharding_strategy="HYBRID_SHARD_ZERO2"), "fsdp_sharding_strategy=HYBRID_SHARD_ZERO2"),
    "fsdp, wrap": (fsdp(fsdp_auto_wrap_policy="SIZE_BASED_WRAP"), "fsdp_auto_wrap_policy=.*strategy.wrap"),
    "fsdp, two blocks": (fsdp(fsdp_transformer_layer_cls_to_wrap="A,B"), "fsdp_transformer_layer_cls_to_wrap=A,B"),
    "fsdp, prefetch": (fsdp(fsdp_backward_prefetch="NO_PREFETCH"), "fsdp_backward_prefetch=NO_PREFETCH"),
    "tensor parallelism": ({**FSDP, "parallelism_config": {"tp_size": 2}}, "parallelism_config=.*strategy=fsdp"),
    "zero 4": (zero(zero_stage=4), "zero_stage=4: taken are 0, 1, 2, 3"),
    "zero, disk": (zero(offload_optimizer_device="nvme"), "offload_optimizer_device=nvme: taken are none, cpu"),
    "zero, accumulated": (zero(gradient_accumulation_steps=4), "gradient_accumulation_steps=4: .*batch.global_size"),
    "zero, pdsh": (zero(deepspeed_multinode_launcher="pdsh"), "deepspeed_multinode_launcher=pdsh: .*strategy=zero1"),
    "zero, a file": (zero(deepspeed_config_file="ds.json"), "deepspeed_config_file=ds.json: .*strategy.zero_options"),
    "no whole number": ({**GPUS, "num_processes": 2.5}, "num_processes=2.5: must be a whole number"),
    "no number": ({**GPUS, "num_machines": True}, "num_machines=True: must be a whole number"),
    "no clipping": (zero(gradient_clipping=float("nan")), "gradient_clipping=nan: must be a number"),
    "no group": ({**FSDP, "fsdp_config": [1]}, "fsdp_config=.1.: must be a group of options"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    values, message = REFUSED[name]
    with pytest.raises(ConfigError, match=rf"^launch.accelerate_config: .*{message}") as caught:
        translate(values)
    assert "\n" not in str(caught.value)


def test_every_field_of_accelerates_class_is_known() -> None:
    """Of the version that is installed: a field of a newer one would be refused as unknown, by name."""
    from accelerate.commands.config.config_args import ClusterConfig

    for name, entry in ClusterConfig.__dataclass_fields__.items():
        default = None if entry.default is dataclasses.MISSING else entry.default
        values = {name: default, **GPUS}
        assert dict(translate(values))["launch.num_processes"] == "4", name


def test_what_accelerate_itself_writes_is_read(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import ClusterConfig

    written = ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="FSDP",
        mixed_precision="bf16",
        use_cpu=False,
        debug=False,
        num_processes=8,
        num_machines=2,
        machine_rank=0,
        main_process_ip="10.0.0.1",
        main_process_port=29501,
        fsdp_config={"fsdp_version": 2, "fsdp_transformer_layer_cls_to_wrap": "BertLayer"},
    )
    written.to_yaml_file(str(tmp_path / "theirs.yaml"))
    config = compose_run(CONFIGS, [f"launch.accelerate_config={tmp_path / 'theirs.yaml'}"])
    assert (config.strategy.name.value, config.strategy.wrap, config.launch.nodes) == ("fsdp", "BertLayer", 2)
    written.to_json_file(str(tmp_path / "theirs.json"))
    config = compose_run(CONFIGS, [f"launch.accelerate_config={tmp_path / 'theirs.json'}"])
    assert (config.strategy.name.value, config.launch.master_port) == ("fsdp", 29501)


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    values = {**fsdp(fsdp_transformer_layer_cls_to_wrap="BertLayer"), "mixed_precision": "bf16"}
    config = composed(tmp_path, values, "strategy=ddp", "launch.num_processes=2", "compute=cpu")
    assert (config.strategy.name.value, config.strategy.wrap) == ("ddp", None)
    assert (config.launch.num_processes, config.compute.device.value) == (2, "cpu")
    assert config.precision.value == "bf16"
    config = composed(tmp_path, values, "strategy.wrap=BertLayer2")
    assert (config.strategy.name.value, config.strategy.wrap) == ("fsdp", "BertLayer2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("a: [", "is no YAML"),
        ("- a", "is no file of `accelerate config`"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "c.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        compose_run(CONFIGS, [f"launch.accelerate_config={file}"])
    assert "\n" not in str(caught.value)


def test_a_file_of_the_machine_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 24: Accelerate's own place for it, with another number of processes and fp16."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(
        yaml.safe_dump({**GPUS, "mixed_precision": "fp16", "num_processes": 8})
    )
    config = compose_run(CONFIGS, [])
    assert config == compose_run(CONFIGS, ["launch.accelerate_config=null"])
    assert (config.precision.value, config.launch.num_processes) == ("auto", "auto")
