"""The parts of an `accelerate config` file about strategies: FSDP and parallelism."""

import re
from collections.abc import Mapping
from typing import Any

from .accelerate_file import Translated
from .accelerate_values import Refused, integer, switch

SHARDING = {
    "FULL_SHARD": "full",
    "SHARD_GRAD_OP": "grad_op",
    "HYBRID_SHARD": "hybrid",
    "TRUE": "full",
    "FALSE": "grad_op",
    "1": "full",
    "2": "grad_op",
    "4": "hybrid",
}
"""`fsdp_sharding_strategy` (a number in old files), or `fsdp_reshard_after_forward`, as `strategy.sharding`."""


def fsdp(found: Translated, config: Mapping[str, Any], *, used: bool) -> None:
    """Take `fsdp_config`."""
    if not used:
        return
    left = {key.removeprefix("fsdp_"): value for key, value in config.items() if value is not None}
    version = integer("fsdp_version", left.pop("version", 1))
    if version not in (1, 2):
        raise Refused("fsdp_version", version, "known are 1 and 2")
    for option in ("sharding_strategy", "reshard_after_forward"):
        if option in left:
            _sharding(found, f"fsdp_{option}", left.pop(option))
    if switch("fsdp_offload_params", left.pop("offload_params", False)):
        found.set("strategy.offload", "parameters")
    if switch("fsdp_activation_checkpointing", left.pop("activation_checkpointing", False)):
        found.set("strategy.activation_checkpointing", True)
    policy = str(left.pop("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")).upper()
    if policy != "TRANSFORMER_BASED_WRAP":
        raise Refused(
            "fsdp_auto_wrap_policy", policy, "the model's blocks are wrapped, which strategy.wrap=CLASS can name"
        )
    block = left.pop("transformer_layer_cls_to_wrap", None)
    if block and not re.fullmatch(r"[\w.]+", str(block)):
        raise Refused("fsdp_transformer_layer_cls_to_wrap", block, "one class is wrapped: name the one that repeats")
    if block:
        found.set("strategy.wrap", block)
    fixed = {
        "backward_prefetch": (("BACKWARD_PRE",), "fully_shard always gathers the next block ahead: BACKWARD_PRE"),
        "backward_prefetch_policy": (
            ("BACKWARD_PRE",),
            "fully_shard always gathers the next block ahead: BACKWARD_PRE",
        ),
        "forward_prefetch": (("FALSE",), "fully_shard gathers ahead by itself: false"),
        "use_orig_params": (("TRUE",), "fully_shard knows no flat parameters: true"),
        "state_dict_type": (
            ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
            "checkpoints are saved in parts that any number of processes reads, the model whole: SHARDED_STATE_DICT",
        ),
        "min_num_params": (("0", "100000000"), "blocks are wrapped, whatever their size"),
        "sync_module_states": (("TRUE", "FALSE"), ""),  # all begin with the same weights anyway
    }
    for option, (allowed, why) in fixed.items():
        value = left.pop(option, None)
        if value is not None and str(value).upper() not in allowed:
            raise Refused(f"fsdp_{option}", value, why)
    if switch("fsdp_cpu_ram_efficient_loading", left.pop("cpu_ram_efficient_loading", False)):
        found.notes.append(
            "fsdp_cpu_ram_efficient_loading=True: has no effect here: every process reads the weights for itself, "
            "before they are cut up"
        )
    for option, value in left.items():
        raise Refused(f"fsdp_{option}", value, "is not known to this version")


def _sharding(found: Translated, option: str, value: Any) -> None:
    word = str(value).upper()
    if word in ("NO_SHARD", "3"):
        found.set("strategy", "ddp")
    elif word in SHARDING:
        found.set("strategy.sharding", SHARDING[word])
    else:
        raise Refused(option, value, "known are FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD and NO_SHARD")


def parallelism(found: Translated, config: Mapping[str, Any]) -> None:
    """Take `parallelism_config`."""
    left = {key.removeprefix("parallelism_config_"): value for key, value in config.items()}
    for name, what in (("tp_size", "tensor"), ("cp_size", "context"), ("sp_size", "sequence")):
        if (size := _size(left, name)) > 1:
            raise Refused(f"parallelism_config_{name}", size, f"{what} parallelism is not supported; strategy=fsdp is")
    for name in [key for key in left if key.startswith(("cp_", "sp_"))]:
        left.pop(name)  # of what was not asked for
    copies, shards = (_size(left, f"dp_{name}_size") for name in ("replicate", "shard"))
    if shards > 1:
        found.set("strategy", "fsdp")
        found.set("strategy.sharding", "hybrid" if copies > 1 else "full")
        if copies > 1:
            found.set("strategy.shard_processes", shards)
    elif copies > 1:
        found.set("strategy", "ddp")
    for option, value in left.items():
        raise Refused(f"parallelism_config_{option}", value, "is not known to this version")


def _size(left: dict[str, Any], name: str) -> int:
    return integer(f"parallelism_config_{name}", left.pop(name, None) or 1)
