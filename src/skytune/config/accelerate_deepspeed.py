"""DeepSpeed's part of an `accelerate config` file, and the JSON file that it may name."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .accelerate_file import Translated
from .accelerate_values import KEY, MEANINGLESS, Refused, integer, mapping, number, switch
from .errors import ConfigError

ZERO_OPTIONS = (
    "allgather_partitions",
    "allgather_bucket_size",
    "overlap_comm",
    "reduce_scatter",
    "reduce_bucket_size",
    "contiguous_gradients",
    "round_robin_gradients",
    "sub_group_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_module_granularity_threshold",
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "ignore_unused_parameters",
    "use_multi_rank_bucket_allreduce",
)
"""Options of DeepSpeed's `zero_optimization` that are handed on as they are."""

FP16_DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "consecutive_hysteresis": False,
    "auto_cast": False,
}
"""What scales the loss here: DeepSpeed's own defaults (0.19)."""

WHOLE = "the model is always saved whole, in fp32"


def deepspeed(found: Translated, config: Mapping[str, Any], folder: Path, *, used: bool) -> None:
    """Take `deepspeed_config`, and the JSON file that it may name."""
    if not used:
        return
    left = {key: value for key, value in config.items() if value is not None}
    file = left.pop("deepspeed_config_file", None)
    offload = {name: str(left.pop(f"offload_{name}_device", None) or "none") for name in ("optimizer", "param")}
    for name in offload:
        left.pop(f"offload_{name}_nvme_path", None)  # read by DeepSpeed only where the device is nvme
    if file and file != "none":
        _file(found, folder / Path(str(file)).expanduser())
    else:
        _stage(found, "zero_stage", left.pop("zero_stage", 2), offload)
    _accumulation("gradient_accumulation_steps", left.pop("gradient_accumulation_steps", None))
    clip = left.pop("gradient_clipping", None)
    if clip not in (None, "auto"):
        found.set("optimizer.clip_norm", number("gradient_clipping", clip) or None)
    for option, why in (
        ("zero3_save_16bit_model", WHOLE),
        ("zero3_init_flag", "every process builds the whole model in the host's memory before it is cut up"),
    ):
        if switch(option, left.pop(option, False)):
            found.notes.append(f"{option}=True: has no effect here: {why}")
    launcher = left.pop("deepspeed_multinode_launcher", "standard")
    if launcher not in ("standard", "nossh"):
        raise Refused("deepspeed_multinode_launcher", launcher, "launch.hosts=[a,b] starts machines over SSH: standard")
    for option in ("deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"):
        if (value := left.pop(option, None)) not in MEANINGLESS:
            raise Refused(option, value, "launch.hosts=[a,b] names the machines")
    if (value := left.pop("deepspeed_moe_layer_cls_names", None)) not in MEANINGLESS:
        raise Refused("deepspeed_moe_layer_cls_names", value, "experts are cut up like all else")
    for option, value in left.items():
        raise Refused(option, value, "is not known to this version")


def _stage(found: Translated, option: str, value: Any, offload: Mapping[str, str]) -> None:
    stage = integer(option, value)
    if stage not in (0, 1, 2, 3):
        raise Refused(option, stage, "known are 0, 1, 2 and 3")
    for name, device in offload.items():
        if device not in ("none", "cpu"):
            raise Refused(f"offload_{name}_device", device, "state can go to the host's memory (cpu), not to a disk")
    if stage == 0:
        if set(offload.values()) != {"none"}:
            raise Refused(option, 0, "nothing can be offloaded without ZeRO: stage 1, 2 or 3")
        return found.set("strategy", "ddp")
    found.set("strategy", f"zero{stage}")
    if offload["param"] == "cpu":
        if stage != 3:
            raise Refused("offload_param_device", "cpu", f"only stage 3 cuts parameters up, this is stage {stage}")
        return found.set("strategy.offload", "parameters")
    if offload["optimizer"] == "cpu":
        found.set("strategy.offload", "optimizer")
    return None


def _accumulation(option: str, value: Any) -> None:
    if value not in (None, "auto") and integer(option, value) != 1:
        raise Refused(
            option,
            value,
            "the global batch is the number that counts here: batch.global_size=N, with "
            "batch.micro_size=M rows at once; accumulation follows (leave this at 1)",
        )


def _file(found: Translated, path: Path) -> None:
    """Take a DeepSpeed configuration file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{KEY}: deepspeed_config_file={path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{KEY}: deepspeed_config_file={path}: is no DeepSpeed configuration (a group of options)")
    left = _said("", values)
    zero = _said("zero_optimization", left.pop("zero_optimization", None))
    offload = {}
    for name in ("optimizer", "param"):
        target = mapping(f"zero_optimization.offload_{name}", zero.pop(f"offload_{name}", None))
        offload[name] = str(target.pop("device", "none"))
        target.pop("pin_memory", None)
        target.pop("nvme_path", None)
        for option, value in target.items():
            raise Refused(f"zero_optimization.offload_{name}.{option}", value, "only device, cpu or none, can be said")
    _stage(found, "zero_optimization.stage", zero.pop("stage", 0), offload)
    for option in ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"):
        if switch(f"zero_optimization.{option}", zero.pop(option, False)):
            found.notes.append(f"zero_optimization.{option}=True: has no effect here: {WHOLE}")
    for option, value in zero.items():
        if option not in ZERO_OPTIONS:
            raise Refused(f"zero_optimization.{option}", value, "is not known to this version")
        found.set(f"+strategy.zero_options.{option}", json.dumps(value))
    _batch(found, left)
    if "gradient_clipping" in left:
        clip = left.pop("gradient_clipping")
        found.set("optimizer.clip_norm", number("gradient_clipping", clip or 0) or None)
    _precision(found, left)
    _optimizer(found, left.pop("optimizer", None))
    _scheduler(found, left.pop("scheduler", None))
    if "steps_per_print" in left:
        left.pop("steps_per_print")
        found.notes.append("steps_per_print: has no effect here: log.every_steps and log.every_seconds say when")
    if switch("wall_clock_breakdown", left.pop("wall_clock_breakdown", False)):
        raise Refused("wall_clock_breakdown", True, "debug=profile records where the time goes")
    if not switch("zero_allow_untested_optimizer", left.pop("zero_allow_untested_optimizer", True)):
        raise Refused("zero_allow_untested_optimizer", False, "the optimizer is torch's own")
    for option, value in left.items():
        raise Refused(option, value, "is not known to this version")


def _batch(found: Translated, left: dict[str, Any]) -> None:
    """Take the numbers of rows: two of the three, with the number of processes, say the third."""

    def rows(option: str) -> int | None:
        value = left.pop(option, None)
        return None if value is None else integer(option, value, least=1)

    whole, micro = rows("train_batch_size"), rows("train_micro_batch_size_per_gpu")
    steps, said = rows("gradient_accumulation_steps"), found.get("launch.num_processes") or ""
    processes = int(said) if said.isdecimal() else None
    parts = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps, "processes": processes}
    product = math.prod(part or 1 for part in parts.values())
    if whole is not None and (whole % product or (None not in parts.values() and whole != product)):
        given = " * ".join(f"{name} {part}" for name, part in parts.items() if part is not None)
        raise Refused("train_batch_size", whole, f"does not go with {given} ({product}): leave one of them at auto")
    if whole is None and micro is not None and processes is not None:
        whole = product
    if micro is None and whole is not None and processes is not None and steps is not None:
        micro = whole // product
    if micro is not None:
        found.set("batch.micro_size", micro)
    if whole is not None:
        found.set("batch.global_size", whole)
    if whole is None or micro is None:
        _accumulation("gradient_accumulation_steps", steps)


def _precision(found: Translated, left: dict[str, Any]) -> None:
    """Take `fp16` and `bf16`; one that is switched off, and no other word of it, means fp32."""
    said = {}
    for name in ("fp16", "bf16"):
        section = _said(name, left.pop(name, None))
        if "enabled" in section:
            said[name] = switch(f"{name}.enabled", section.pop("enabled"))
        for option, value in section.items():
            if value != FP16_DEFAULTS.get(option):
                raise Refused(f"{name}.{option}", value, "the loss is scaled as by default: auto, or leave it out")
    chosen = [name for name, on in said.items() if on]
    if len(chosen) > 1:
        raise Refused("bf16.enabled", True, "fp16.enabled says so of another precision: switch one of them off")
    if chosen:
        found.set("precision", chosen[0])
    elif said and found.get("precision") is None:
        found.set("precision", "fp32")


def _optimizer(found: Translated, value: Any) -> None:
    section = mapping("optimizer", value)
    if not section:
        return
    kind, params = str(section.get("type", "AdamW")), _said("optimizer.params", section.get("params"))
    decoupled = switch("optimizer.params.adam_w_mode", params.pop("adam_w_mode", True))
    if kind.lower() != "adamw" and not (kind.lower() == "adam" and decoupled):
        raise Refused(
            "optimizer.type", kind, "optimizer=adamw and optimizer=sgd are known, optimizer._target_ takes any class"
        )
    params.pop("torch_adam", None)
    for option in ("lr", "weight_decay", "eps"):
        if option in params:
            found.set(f"optimizer.{option}", number(f"optimizer.params.{option}", params.pop(option)))
    if "betas" in params:
        betas = params.pop("betas")
        if not isinstance(betas, list) or len(betas) != 2:
            raise Refused("optimizer.params.betas", betas, "must be two numbers")
        found.set("optimizer.betas", [number("optimizer.params.betas", beta) for beta in betas])
    for option, value in params.items():
        raise Refused(f"optimizer.params.{option}", value, "is not known to this version")


def _scheduler(found: Translated, value: Any) -> None:
    section = mapping("scheduler", value)
    if not section:
        return
    kind, params = str(section.get("type")), _said("scheduler.params", section.get("params"))
    names = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
    if kind not in names:
        raise Refused("scheduler.type", kind, f"known are {', '.join(names)}; schedule._target_ takes any function")
    found.set("schedule", names[kind])
    if "warmup_num_steps" in params:
        steps = integer("scheduler.params.warmup_num_steps", params.pop("warmup_num_steps"), least=0)
        found.set("schedule.warmup_steps", steps)
    if "warmup_max_lr" in params:
        found.set("optimizer.lr", number("scheduler.params.warmup_max_lr", params.pop("warmup_max_lr")))
    if (shape := params.pop("warmup_type", "linear")) != "linear":
        raise Refused("scheduler.params.warmup_type", shape, "the rate rises linearly")
    for option in ("warmup_min_lr", "warmup_min_ratio", "cos_min_ratio"):
        if least := number(f"scheduler.params.{option}", params.pop(option, None) or 0):
            raise Refused(f"scheduler.params.{option}", least, "the rate begins and ends at 0")
    params.pop("total_num_steps", None)  # the schedule ends where training ends
    for option, value in params.items():
        raise Refused(f"scheduler.params.{option}", value, "is not known to this version")


def _said(option: str, value: Any) -> dict[str, Any]:
    """Return what a group of a DeepSpeed file says; `auto` leaves it to the program."""
    return {name: inner for name, inner in mapping(option, value).items() if inner != "auto"}
