"""A file of `accelerate config` as overrides of this project's keys; an option without one is refused by name.

    python src/run.py launch.accelerate_config=~/.cache/huggingface/accelerate/default_config.yaml

The options are those of Accelerate 1.15 (`accelerate.commands.config.config_args.ClusterConfig`). Those are taken that
people set; `accelerate config` writes many more, at values that ask for nothing, and they are passed over.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cli_grammar import quoted
from .errors import ConfigError

KEY = "launch.accelerate_config"

DISTRIBUTED = {
    "NO": None,
    "MULTI_GPU": ("compute", "cuda"),
    "MULTI_CPU": ("compute", "cpu"),
    "MPS": ("compute", "mps"),
    "FSDP": ("strategy", "fsdp"),
    "DEEPSPEED": ("strategy", "zero2"),
}
"""`distributed_type`."""

COMPILE = {"default": "on", "reduce-overhead": "reduce_overhead", "max-autotune": "max_autotune"}
SHARDING = {
    "full": ("full_shard", "true", "1"),
    "grad_op": ("shard_grad_op", "false", "2"),
    "hybrid": ("hybrid_shard", "4"),
}
"""`strategy.sharding` by `fsdp_sharding_strategy` (a number in old files) or `fsdp_reshard_after_forward`."""

CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "mixed_precision": ("precision", {"no": "fp32", "false": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}),
    "use_cpu": ("compute", {"true": "cpu", "false": ""}),
    **dict.fromkeys(
        ("fsdp_sharding_strategy", "fsdp_reshard_after_forward"),
        ("strategy.sharding", {word: name for name, words in SHARDING.items() for word in words}),
    ),
    "fsdp_offload_params": ("strategy.offload", {"true": "parameters", "false": ""}),
    "fsdp_activation_checkpointing": ("strategy.activation_checkpointing", {"true": "true", "false": ""}),
    "zero_stage": ("strategy", {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}),
    "offload_optimizer_device": ("strategy.offload", {"none": "", "cpu": "optimizer"}),
    "offload_param_device": ("strategy.offload", {"none": "", "cpu": "parameters"}),
    "dynamo_backend": ("compile", {"no": "", "inductor": "on"}),
    "dynamo_mode": ("compile", COMPILE),
}
"""Options with a fixed choice: our key, and its value by theirs; an empty one leaves the key alone."""

VALUES = {
    "num_machines": ("launch.nodes", int),
    "machine_rank": ("launch.node_rank", int),
    "main_process_ip": ("launch.master_addr", str),
    "main_process_port": ("launch.master_port", int),
    "num_processes": ("launch.num_processes", int),
    "gpu_ids": ("launch.gpu_ids", str),
    "fsdp_transformer_layer_cls_to_wrap": ("strategy.wrap", str),
    "gradient_clipping": ("optimizer.clip_norm", float),
}
"""Options whose value is that of our key."""

MACHINES = ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network")
"""Options that say nothing of a run on one machine."""

UNUSED = ("", "none", "null", "false", "no", "[]", "['']", "{}", "0")
"""Values by which a file says that an option is not used."""

SAME: dict[str, tuple[str, ...]] = {
    "compute_environment": ("local_machine",),
    "rdzv_backend": ("static",),
    "main_training_function": ("main",),
    "same_network": ("true",),
    "gradient_accumulation_steps": ("1", "auto"),
    "deepspeed_multinode_launcher": ("standard",),
    "zero3_init_flag": ("true",),
    "zero3_save_16bit_model": ("true",),
    "fsdp_version": ("1", "2"),
    "fsdp_auto_wrap_policy": ("transformer_based_wrap",),
    "fsdp_state_dict_type": ("full_state_dict", "sharded_state_dict"),
    "fsdp_backward_prefetch": ("backward_pre",),
    "fsdp_use_orig_params": ("true",),
    "fsdp_sync_module_states": ("true",),
    "fsdp_cpu_ram_efficient_loading": ("true",),
    "fsdp_min_num_params": ("100000000",),
}
"""Values that `accelerate config` writes by itself and that ask for what happens here anyway."""

INSTEAD = {
    "compute_environment": "a stack with the SkyPilot step operator brings machines up",
    "gradient_accumulation_steps": "batch.global_size=N rows a step, batch.micro_size=M at once; accumulation follows",
    "deepspeed": "strategy=zero1, zero2 or zero3, with +strategy.zero_options.NAME=VALUE for DeepSpeed's own words",
    "offload": "strategy.offload=optimizer or parameters goes to the host's memory",
    "fsdp": "strategy=fsdp with strategy.sharding, strategy.wrap, strategy.offload, strategy.activation_checkpointing",
    "parallelism": "strategy=fsdp strategy.sharding=hybrid strategy.shard_processes=N",
    "dynamo": "compile=on, reduce_overhead or max_autotune, with compile.shapes",
    "fp8": "precision=fp8 is computed by torchao",
    "max_restarts": "the same command goes on from the checkpoint",
    "rdzv": "launch.nodes, launch.node_rank and launch.master_addr say where machines meet",
    "mpirun": "launch.hosts=[a,b] starts the processes on other machines",
    "enable_cpu_affinity": "start the command with numactl",
    "tpu": "CUDA (and ROCm), MPS and the CPU are supported",
    "distributed_type": f"taken are {', '.join(DISTRIBUTED)}",
}
"""What does the same here, by the beginning of an option's name."""


def _refused(option: str, value: Any, why: str = "") -> ConfigError:
    hints = [text for name, text in INSTEAD.items() if option.startswith(name)]
    why = why or (f"is not taken from a file; here: {hints[0]}" if hints else "is not taken from a file: leave it out")
    return ConfigError(f"{KEY}: {option}={' '.join(str(value).split())}: {why}")


def read_overrides(name: str) -> list[tuple[str, str]]:
    """Return what a file of `accelerate config` (YAML or JSON) means here: keys and values as on the command line.

    Raises:
        ConfigError: it cannot be read, or holds an option that cannot be honoured; the message names it, and what does
            the same here.
    """
    import yaml

    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{KEY}={name}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{KEY}={name}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{KEY}={name}: is no file of `accelerate config`")
    return translate(values)


def translate(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same for the file's values."""
    kind = str(values.get("distributed_type") or "NO").upper()
    if kind not in DISTRIBUTED:
        raise _refused("distributed_type", kind)
    found = dict([pair]) if (pair := DISTRIBUTED[kind]) else {"launch.num_processes": "1"}
    flat: dict[str, Any] = {}
    for option, value in values.items():
        if option not in ("fsdp_config", "deepspeed_config", "dynamo_config"):
            flat[str(option)] = value
        elif not (isinstance(value, Mapping) or value in (None, "")):
            raise _refused(str(option), value, "must be a group of options")
        elif option == "dynamo_config" or option == f"{kind.lower()}_config":  # of the others, what is left over
            flat.update({str(name): inner for name, inner in (value or {}).items()})
    machines = flat.get("num_machines") or 1
    for option, value in flat.items():
        word = str(value).strip().lower() if value is not None else ""
        if option == "distributed_type" or (machines == 1 and option in MACHINES):
            continue
        if option in CHOICES and word not in ("", "null"):
            key, choices = CHOICES[option]
            if word == "no_shard":
                found["strategy"] = "ddp"
            elif word not in choices:
                raise _refused(option, value, f"taken are {', '.join(choices)}")
            elif choices[word] and found.get(key) != "parameters":  # which take the optimizer's state along
                found[key] = choices[word]
        elif option in VALUES and value not in (None, "", "all", "auto", []):
            key, type_ = VALUES[option]
            found[key] = _value(option, value, type_)
        elif option not in VALUES and word not in (*UNUSED, *SAME.get(option, ())):
            raise _refused(option, value)
    if found.get("compile") in COMPILE.values() and str(flat.get("dynamo_backend") or "no").lower() == "no":
        del found["compile"]  # a mode without a backend compiles nothing
    return sorted(found.items(), key=lambda pair: "." in pair[0])  # groups before keys in them


def _value(option: str, value: Any, type_: type) -> str:
    """Return a value as on the command line; one of another type is refused."""
    if type_ is str:
        words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if option == "fsdp_transformer_layer_cls_to_wrap" and not words.replace(".", "_").isidentifier():
            raise _refused(option, value, "one class is wrapped: name the one that repeats (strategy.wrap)")
        return quoted(words.replace(" ", "").strip("'"))  # to Hydra a bare comma is the beginning of a sweep
    try:
        number = float("nan" if isinstance(value, bool) else value)
        if type_ is int:
            least = -1 if option == "num_processes" else 0
            if number != int(number) or number < least:
                raise ValueError
            return "auto" if option == "num_processes" and number < 1 else str(int(number))
        if not 0 <= number < float("inf"):
            raise ValueError
        return str(number) if number else "null"
    except (TypeError, ValueError, OverflowError):
        raise _refused(option, value, f"must be a {'whole ' if type_ is int else ''}number") from None
