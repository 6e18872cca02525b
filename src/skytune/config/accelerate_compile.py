"""The parts of an `accelerate config` file about how a step is computed: torch compile and fp8."""

from collections.abc import Mapping
from typing import Any

from .accelerate_file import Translated
from .accelerate_values import MEANINGLESS, Refused, switch

COMPILE = {"default": "on", "reduce-overhead": "reduce_overhead", "max-autotune": "max_autotune"}


def dynamo(found: Translated, config: Mapping[str, Any], backend: Any) -> None:
    """Take `dynamo_config`, and `dynamo_backend` of old files."""
    left = {key.removeprefix("dynamo_"): value for key, value in config.items()}
    backend = str(left.pop("backend", backend) or "NO").upper()
    mode, dynamic = str(left.pop("mode", None) or "default"), left.pop("use_dynamic", None)
    dynamic = None if dynamic is None else switch("dynamo_use_dynamic", dynamic)
    if backend not in ("NO", "INDUCTOR"):
        raise Refused("dynamo_backend", backend, "compile=on compiles with INDUCTOR, the backend of torch itself")
    for option, why in (
        ("use_fullgraph", "a model may have parts that cannot be compiled; they run as they are"),
        ("use_regional_compilation", "the whole model is compiled; compile.shapes bounds how often"),
    ):
        if (value := left.pop(option, None)) not in MEANINGLESS:
            raise Refused(f"dynamo_{option}", value, why)
    for option, value in left.items():
        raise Refused(f"dynamo_{option}", value, "is not known to this version")
    if backend == "NO":
        if config:
            found.set("compile", "off")
        return
    if mode not in COMPILE:
        raise Refused("dynamo_mode", mode, f"known are {', '.join(COMPILE)}")
    found.set("compile", COMPILE[mode])
    if dynamic is False and COMPILE[mode] == "on":
        found.set("compile.shapes", 8)  # fixed shapes, as `reduce_overhead` has them, in a bounded number
    elif dynamic is True and COMPILE[mode] != "on":
        raise Refused("dynamo_use_dynamic", True, f"{mode} records kernels for fixed lengths (compile.shapes many)")


def fp8(config: Mapping[str, Any]) -> None:
    """See that `fp8_config` asks for nothing that is done otherwise here."""
    left = dict(config)
    backend = str(left.pop("backend", None) or "AO").upper()
    if backend != "AO":
        raise Refused("fp8_config.backend", backend, "precision=fp8 is computed by torchao: AO says that")
    if switch("fp8_config.enable_fsdp_float8_all_gather", left.pop("enable_fsdp_float8_all_gather", False)):
        raise Refused(
            "fp8_config.enable_fsdp_float8_all_gather", True, "weights are gathered in their own format: false"
        )
    left.pop("pad_inner_dim", None)  # torchao is given layers whose sizes fit, others stay as they are
    for option, value in left.items():
        raise Refused(f"fp8_config.{option}", value, "is not known to this version")
