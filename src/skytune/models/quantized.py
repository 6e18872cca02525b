"""Weights of a frozen base kept in 4 bits, beside which an adapter learns: QLoRA (Dettmers et al. 2023,
arXiv:2305.14314), by bitsandbytes: NormalFloat-4, its constants quantized as well."""

import importlib.util
import logging
import sys
from collections import Counter
from typing import Any

from ..config import ConfigError
from ..config.installing import needing

BITS = 4

# On some CPUs it warns, when peft imports it, that a kernel which nobody asked for could not be fetched.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def import_bitsandbytes() -> None:
    """Import it, where it is installed, before peft does: on some CPUs it fetches a kernel from the Hub, which is
    code."""
    if "bitsandbytes" in sys.modules or importlib.util.find_spec("bitsandbytes") is None:
        return
    modules: dict[str, Any] = sys.modules
    before = {name: modules.pop(name) for name in ["kernels"] if name in modules}
    modules["kernels"] = None  # Python's own way to say that it cannot be imported
    try:
        import bitsandbytes  # noqa: F401 - for its effect
    finally:
        del modules["kernels"]
        modules.update(before)


def quantize(model: Any, whole: list[str]) -> None:
    """Keep a model's linear layers in 4 bits, in place, but for the parts that are trained whole and the head.

    Args:
        model: in float32 on the CPU.
        whole: names of modules that stay as they are, with all below them.

    Raises:
        ConfigError: no layer can be quantized.
        UserError: bitsandbytes is not installed.
    """
    import torch

    with needing("qlora"):
        import bitsandbytes as bnb
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    shared = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    found = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear
        and module is not output
        and shared[id(module.weight)] == 1  # who quantized one of two would part them
        and not any(f"{name}.".startswith(f"{part}.") for part in whole)
    ]
    if not found:
        raise ConfigError(f"model.lora.bits={BITS}: {type(model).__name__} has no linear layer that can be quantized")
    for name, module in found:
        made = bnb.nn.Linear4bit(
            module.in_features, module.out_features, module.bias is not None, quant_type="nf4", device="meta"
        )
        how = {"quant_type": "nf4", "compress_statistics": True}
        made.weight = bnb.nn.Params4bit(module.weight.detach(), requires_grad=False, **how).to("cpu")
        made.bias = module.bias
        # Else some CPUs compute what is scored, not what is trained, from another layout, in bfloat16.
        made.support_avx512bf16_for_cpu = False
        _put(model, name, made)
    model.is_loaded_in_4bit = True  # peft asks for it


def restore(model: Any) -> None:
    """Give a model's linear layers plain weights again, in place: those that 4 bits stand for, in float32."""
    for name, module in list(model.named_modules()):
        if is_quantized(module):
            _put(model, name, plain(module))
    model.is_loaded_in_4bit = False


def is_quantized(module: Any) -> bool:
    """Whether a layer's weights are kept in 4 bits."""
    return hasattr(getattr(module, "weight", None), "quant_state")


def count_numbers(weight: Any) -> int:
    """Return how many numbers a parameter stands for: a quantized one has two in each of its bytes."""
    state = getattr(weight, "quant_state", None)
    return int(weight.numel() if state is None else state.shape.numel())


def plain(module: Any) -> Any:
    """Return a linear layer with the weights that another's 4 bits stand for."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    made = torch.nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
    made.weight = torch.nn.Parameter(dequantize_4bit(module.weight.data, module.weight.quant_state).float())
    made.bias = module.bias
    return made


def _put(model: Any, name: str, module: Any) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
