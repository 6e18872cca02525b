"""A file of `accelerate config` as overrides of this project's keys; what cannot be honoured is refused by name.

    python src/run.py launch.accelerate_config=~/.cache/huggingface/accelerate/default_config.yaml

The keys are those of Accelerate 1.15 (`accelerate.commands.config.config_args.ClusterConfig`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .accelerate_values import KEY, MEANINGLESS, Refused, integer, mapping, switch
from .errors import ConfigError
from .words import quoted


@dataclass
class Translated:
    """What a file means here."""

    overrides: list[tuple[str, str]] = field(default_factory=list)
    """Keys and values as on the command line, groups before keys in them."""

    notes: list[str] = field(default_factory=list)
    """Options that change nothing here, one line each with the reason."""

    def set(self, key: str, value: Any) -> None:
        """Add an override, in the place of an earlier one of the same key."""
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        self.overrides = [(k, v) for k, v in self.overrides if k != key] + [(key, text)]

    def get(self, key: str) -> str | None:
        """Return the value of an override that was added."""
        return dict(self.overrides).get(key)


OTHER_DEVICES = (
    "CUDA (and ROCm), MPS and the CPU are supported: run `accelerate config` for one of them, or leave the file out"
)
NO_TPU = "TPUs are not supported; GPUs are, with strategy=fsdp (and launch.nodes) where the model or the data are large"
NO_MEGATRON = "Megatron-LM is not supported; strategy=fsdp and strategy=zero3 train models that do not fit on one GPU"
DISTRIBUTED: dict[str, tuple[tuple[str, str], ...] | str] = {
    "NO": (),
    "MULTI_GPU": (("compute", "cuda"),),
    "MULTI_CPU": (("compute", "cpu"),),
    "MPS": (("compute", "mps"),),
    "FSDP": (("strategy", "fsdp"),),
    "DEEPSPEED": (),
    "XLA": NO_TPU,
    "TPU": NO_TPU,
    "MEGATRON_LM": NO_MEGATRON,
    **dict.fromkeys(
        ("MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON"), OTHER_DEVICES
    ),
}
"""Overrides by `distributed_type`, or why it is refused."""

PRECISION = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
GROUPS = ("dynamo_config", "fp8_config", "fsdp_config", "deepspeed_config", "parallelism_config")
TPU_ONLY = ("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env")


def translate_file(name: str) -> Translated:
    """Return what a file of `accelerate config` (YAML or JSON) means here.

    Raises:
        ConfigError: it cannot be read, or holds an option that cannot be honoured; the message names it, why, and what
            does the same here.
    """
    import yaml

    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{KEY}={name}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{KEY}={name}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{KEY}={name}: is no file of `accelerate config`")
    return translate(values, path.parent)


def translate(values: Mapping[str, Any], folder: Path = Path()) -> Translated:
    """The same for the file's values; `folder` is where a DeepSpeed file beside it lies."""
    found, left = Translated(), dict(values)
    if left.pop("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        why = "only LOCAL_MACHINE is taken; a stack with the SkyPilot step operator brings machines up"
        raise Refused("compute_environment", values["compute_environment"], why)
    kind = str(left.pop("distributed_type", None) or "NO").upper()
    _kind(found, kind)
    for option, take in _TOP.items():
        if option in left and (value := left.pop(option)) is not None:
            take(found, option, value)
    machines = integer("num_machines", left.pop("num_machines", None) or 1, least=1)
    _machines(found, machines, left)
    _devices(found, kind, left, machines)
    groups = {name: mapping(name, left.pop(name, None)) for name in GROUPS}
    from .accelerate_compile import dynamo, fp8
    from .accelerate_deepspeed import deepspeed
    from .accelerate_strategies import fsdp, parallelism

    dynamo(found, groups["dynamo_config"], left.pop("dynamo_backend", None))
    fp8(groups["fp8_config"])
    fsdp(found, groups["fsdp_config"], used=kind == "FSDP")
    deepspeed(found, groups["deepspeed_config"], folder, used=kind == "DEEPSPEED")
    parallelism(found, groups["parallelism_config"])
    for option, value in left.items():
        raise Refused(option, value, "is not known to this version")
    found.overrides.sort(key=lambda pair: "." in pair[0])
    return found


def _kind(found: Translated, kind: str) -> None:
    meaning = DISTRIBUTED.get(kind)
    if meaning is None:
        raise Refused("distributed_type", kind, f"is not known; known are {', '.join(DISTRIBUTED)}")
    if isinstance(meaning, str):
        raise Refused("distributed_type", kind, meaning)
    for key, value in meaning:
        found.set(key, value)


def _machines(found: Translated, machines: int, left: dict[str, Any]) -> None:
    keys = {"machine_rank": "node_rank", "main_process_ip": "master_addr", "main_process_port": "master_port"}
    said = {option: left.pop(option, None) for option in keys}
    backend = str(left.pop("rdzv_backend", None) or "static")
    if machines == 1:
        found.set("launch.nodes", 1)
        if said["main_process_port"]:
            found.notes.append("main_process_port: one machine takes a free port by itself")
        return
    if backend != "static":
        raise Refused(
            "rdzv_backend", backend, "machines meet at launch.master_addr, in a fixed number: static says that"
        )
    found.set("launch.nodes", machines)
    for option in ("machine_rank", "main_process_port"):
        if said[option] is not None:
            found.set(f"launch.{keys[option]}", integer(option, said[option], least=0))
    if said["main_process_ip"] is not None:
        found.set("launch.master_addr", quoted(str(said["main_process_ip"])))


def _devices(found: Translated, kind: str, left: dict[str, Any], machines: int) -> None:
    if switch("use_cpu", left.pop("use_cpu", False)):
        found.set("compute", "cpu")
    count = left.pop("num_processes", None)
    if count is None and kind == "NO":
        count = 1
    if count is not None:
        count = integer("num_processes", count)
        found.set("launch.num_processes", "auto" if count < 1 else count)
    ids = left.pop("gpu_ids", None)
    if ids not in (None, "all", "", []):
        if machines > 1:
            found.notes.append("gpu_ids: is said of this machine only; the others take all that they have")
        words = ",".join(map(str, ids)) if isinstance(ids, list) else str(ids)
        # In quotes: to Hydra a comma is the beginning of a sweep.
        found.set("launch.gpu_ids", "'" + words.replace(" ", "").strip("'") + "'")


def _precision(found: Translated, option: str, value: Any) -> None:
    word = "no" if value is False else str(value).lower()  # YAML reads a bare `no` as false
    if word not in PRECISION:
        raise Refused(option, value, f"known are {', '.join(PRECISION)}")
    found.set("precision", PRECISION[word])


def _fp16(found: Translated, option: str, value: Any) -> None:
    found.set("precision", "fp16" if switch(option, value) else "fp32")


def _refused(why: str) -> Callable[[Translated, str, Any], None]:
    """Return what refuses an option unless its value says that it is not used."""

    def take(found: Translated, option: str, value: Any) -> None:
        if value not in MEANINGLESS:
            raise Refused(option, value, why)

    return take


def _no_effect(why: str) -> Callable[[Translated, str, Any], None]:
    def take(found: Translated, option: str, value: Any) -> None:
        if value not in MEANINGLESS:
            found.notes.append(f"{option}={value}: has no effect here: {why}")

    return take


def _nothing(found: Translated, option: str, value: Any) -> None:
    """An option whose every value is right here."""


def _restarts(found: Translated, option: str, value: Any) -> None:
    if integer(option, value):
        raise Refused(
            option, value, "workers are not started again in place; the same command goes on from the checkpoint"
        )


def _function(found: Translated, option: str, value: Any) -> None:
    if value != "main":
        raise Refused(option, value, "there is no script of yours to call: python src/run.py is the command")


_TOP: dict[str, Callable[[Translated, str, Any], None]] = {
    "fp16": _fp16,
    "mixed_precision": _precision,
    "main_training_function": _function,
    "max_restarts": _restarts,
    "same_network": _nothing,  # machines meet at one address, in one network or not
    "debug": _no_effect("it checks Accelerate's own collective calls; debug= shows the traceback of an error"),
    "enable_cpu_affinity": _refused("processes are not bound to cores; start the command with numactl"),
    "downcast_bf16": _refused(NO_TPU),
    "megatron_lm_config": _refused(NO_MEGATRON),
    "mpirun_config": _refused("processes are started by torchrun; launch.hosts=[a,b] starts them on other machines"),
    **dict.fromkeys(TPU_ONLY, _refused(NO_TPU)),
}
