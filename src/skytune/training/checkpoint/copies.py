"""Tensors copied to the host's memory, which is all that a save holds training up for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Mapping[str, "torch.Tensor"]]
"""Tensors by name, by the file that takes them."""


class Copies:
    """Buffers on the host, made once: page-locked for a GPU's tensors, which are fast to copy to and slow to make."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}

    def prepare(self, tensors: Tensors) -> None:
        """Make the buffers that `take` will fill."""
        for file, named in tensors.items():
            for name, tensor in named.items():
                self._buffer((file, name), tensor)

    def take(self, tensors: Tensors) -> dict[str, dict[str, "torch.Tensor"]]:
        """Copy; the copies are good until the next call.

        Every tensor gets memory of its own, which tied weights in a safetensors file need.
        """
        import torch

        copied: dict[str, dict[str, torch.Tensor]] = {}
        devices: set[torch.device] = set()
        for file, named in tensors.items():
            copied[file] = {}
            for name, tensor in named.items():
                copied[file][name] = self._buffer((file, name), tensor).copy_(tensor.detach(), non_blocking=True)
                devices.add(tensor.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            elif device.type == "mps":
                torch.mps.synchronize()
        return copied

    def _buffer(self, key: tuple[str, str], tensor: "torch.Tensor") -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._buffers[key] = buffer
        return buffer
