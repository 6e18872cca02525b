"""Which number format the forward and backward pass really use on a device, and the contexts that make it so.

Weights, gradients and the optimizer's state stay in float32; `fp32` means it for matrix products too.
"""

import contextlib
import importlib.util
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ..config import Precision, UserError

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16, Precision.fp8: torch.bfloat16}
"""What autocast is set to; with fp8, all but the linear layers compute in bf16."""


@dataclass(frozen=True)
class Ability:
    """What one device can do."""

    kind: str
    """`cpu`, `cuda` or `mps`."""

    name: str = ""
    """As a person would name it."""

    bf16: bool = False
    """Has bf16 arithmetic of its own."""

    fp16: bool = False
    """Has fp16 arithmetic that is worth using."""

    tf32: bool = False
    """Can round the inputs of fp32 matrix products to TF32."""

    fp8: bool = False
    """Has fp8 matrix products, and the package that trains with them is installed."""

    fp8_lacks: str = ""
    """Why it has not."""


@dataclass(frozen=True)
class Resolved:
    """A precision that was asked for, and what it became."""

    requested: Precision
    effective: Precision
    note: str = ""
    """Why they differ, in one line; empty where they do not (or where `auto` chose)."""


def ability(kind: str, index: int | None = None) -> Ability:
    """Look at a device.

    Sources: bf16 and TF32 came with NVIDIA's Ampere (compute capability 8.0), useful fp16 with Pascal's GP100 (6.0) and
    Volta, fp8 with Ada and Hopper (8.9); Metal has bf16 from macOS 14 on (torch's own check).
    """
    if kind == "cpu":
        return Ability("cpu", "CPU", bf16=True, fp8_lacks="a CPU has none")
    if kind == "mps":
        new = bool(torch.backends.mps.is_available() and torch.backends.mps.is_macos_or_newer(14, 0))
        return Ability("mps", "Metal device", bf16=new, fp8_lacks="Metal has none")
    version = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    rocm = torch.version.hip is not None
    lacks = ""
    if version < (8, 9) or rocm:
        lacks = f"{name} has none (Ada, Hopper and newer have)"
    elif importlib.util.find_spec("torchao") is None:
        lacks = "the package torchao is not installed"
    return Ability(
        "cuda",
        name,
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        fp16=version >= (6, 0),
        tf32=version >= (8, 0) and not rocm,
        fp8=not lacks,
        fp8_lacks=lacks,
    )


def resolve(wanted: Precision, device: Ability) -> Resolved:
    """Return what is really used.

    | asked | CPU | Metal | CUDA before Ampere | CUDA from Ampere on |
    |---|---|---|---|---|
    | auto | fp32 | fp32 | fp32 | bf16 |
    | fp32 | fp32 | fp32 | fp32 | fp32 |
    | tf32 | fp32, told | fp32, told | fp32, told | tf32 |
    | bf16 | bf16 | bf16; fp32, told, before macOS 14 | fp16, told; fp32, told, without it | bf16 |
    | fp16 | refused | bf16, told; fp32, told, before macOS 14 | fp16 | fp16 |
    | fp8 | refused | refused | refused | fp8 with torchao on Ada, Hopper and newer, else refused |

    Raises:
        UserError: fp16 on a CPU; fp8 where it cannot be had. It is never replaced: who asks for it has a reason.
    """
    if wanted is Precision.auto:
        return Resolved(wanted, Precision.bf16 if device.kind == "cuda" and device.bf16 else Precision.fp32)
    if wanted is Precision.fp8 and not device.fp8:
        raise UserError(f"precision=fp8: {device.fp8_lacks}; use precision=bf16")
    if wanted is Precision.fp16 and device.kind == "cpu":
        raise UserError("precision=fp16: a CPU has no fp16 training; use precision=bf16 or precision=fp32")
    has = {Precision.tf32: device.tf32, Precision.bf16: device.bf16, Precision.fp16: device.fp16}
    if has.get(wanted, True):
        return Resolved(wanted, wanted)
    # The two 16-bit formats stand in for each other where they can; loss scaling makes up for fp16's small range.
    other = {Precision.bf16: Precision.fp16, Precision.fp16: Precision.bf16}.get(wanted)
    effective = other if other is not None and has[other] else Precision.fp32
    return Resolved(
        wanted,
        effective,
        f"precision={wanted.value}: this {device.name} does not have it; computing in {effective.value}",
    )


def set_matmul(effective: Precision) -> None:
    """Let fp32 matrix products and convolutions round their inputs to TF32, or forbid it (fp32 then means fp32)."""
    torch.set_float32_matmul_precision("highest" if effective is Precision.fp32 else "high")
    torch.backends.cudnn.allow_tf32 = effective is not Precision.fp32


def autocast(kind: str, effective: Precision) -> AbstractContextManager[None]:
    """Return the context of a forward pass."""
    dtype = DTYPES.get(effective)
    if dtype is None:
        return contextlib.nullcontext()
    context: AbstractContextManager[None] = torch.autocast(kind, dtype=dtype)
    return context
