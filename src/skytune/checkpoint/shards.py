"""Tensors that lie in pieces on several processes: which piece is whose, the index that says where each lies, and
reading a whole tensor, or any region of it, from however many pieces it was saved in.

    model-rank-00000-of-00002.safetensors   what rank 0 held, under the tensors' own names
    model.index.json                        {"model": {name: {"shape", "pieces": [{"file", "offset", "shape"}]}}}
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.json import load_json
from ..config import UserError
from .store import Found

if TYPE_CHECKING:
    import torch

INDEX = "shards"
"""Name of the JSON document that holds the index of all sharded files."""


@dataclass(frozen=True)
class Piece:
    """A block of a tensor."""

    tensor: "torch.Tensor"
    """The numbers of this block; may be empty."""

    shape: tuple[int, ...]
    """Of the whole tensor."""

    offset: tuple[int, ...]
    """Where the block begins."""

    saved_here: bool = True
    """Whether this process is the one to save it (others may have copies)."""

    @property
    def whole(self) -> bool:
        """Whether the block is all of the tensor."""
        return tuple(self.tensor.shape) == self.shape


def local_piece(tensor: "torch.Tensor", main: bool = True) -> Piece:
    """Return what this process holds of a tensor.

    A DTensor may be cut along one dimension over one dimension of its mesh (as `fully_shard` does: like `torch.chunk`)
    and copied over the others; of copies the first is saved. A plain tensor is saved by the main process.
    """
    from torch.distributed.tensor import DTensor, Shard

    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Piece(tensor, shape, (0,) * len(shape), main)
    local, offset, saves = tensor.to_local(), [0] * len(shape), True
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "this process is no part of the tensor's mesh"
    cut = [i for i, placement in enumerate(tensor.placements) if isinstance(placement, Shard)]
    assert len(cut) <= 1, f"cut over {len(cut)} dimensions of the mesh"
    for i, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            length, parts = shape[placement.dim], tensor.device_mesh.size(i)
            chunk = -(-length // parts)
            offset[placement.dim] = min(coordinate[i] * chunk, length)
            held = min(chunk, length - offset[placement.dim])
            assert local.shape[placement.dim] == held, f"holds {tuple(local.shape)} of {shape}, not {held} rows"
        else:
            saves = saves and coordinate[i] == 0
    return Piece(local, shape, tuple(offset), saves)


def pieces(tensors: "Mapping[str, torch.Tensor]", main: bool) -> dict[str, Piece]:
    """Return the pieces that this process is to save, by name; empty ones are left out."""
    found = {name: local_piece(tensor, main) for name, tensor in tensors.items()}
    return {name: piece for name, piece in found.items() if piece.saved_here and (piece.tensor.numel() or piece.whole)}


def file_name(kind: str, rank: int, size: int) -> str:
    """Return the name, without its ending, of the file of one process's pieces."""
    return f"{kind}-rank-{rank:05d}-of-{size:05d}"


def index_of(found: Mapping[str, Piece], file: str) -> dict[str, Any]:
    """Return one process's part of the index."""
    return {
        name: {
            "shape": list(piece.shape),
            "pieces": [{"file": file, "offset": list(piece.offset), "shape": list(piece.tensor.shape)}],
        }
        for name, piece in found.items()
    }


def join_indexes(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the index of all processes.

    Raises:
        UserError: pieces are missing or overlap: a checkpoint that lacks some of a tensor is none.
    """
    joined: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.items():
            known = joined.setdefault(name, {"shape": entry["shape"], "pieces": []})
            known["pieces"] += entry["pieces"]
    for name, entry in joined.items():
        held = sum(math.prod(piece["shape"]) for piece in entry["pieces"])
        if held != math.prod(entry["shape"]):
            raise UserError(f"{name}: the processes hold {held} of its {math.prod(entry['shape'])} numbers")
    return dict(sorted(joined.items()))


class Stored(Mapping[str, "torch.Tensor"]):
    """Tensors in safetensors files, read as they are asked for: whole, or a region."""

    def __init__(self, files: Mapping[str, Path], index: Mapping[str, Any]) -> None:
        """Begin.

        Args:
            files: the files by name.
            index: as `join_indexes` returns it.
        """
        self.files, self.index = files, index
        self._open: dict[str, Any] = {}

    @classmethod
    def whole(cls, path: Path) -> "Stored":
        """Return the tensors of one file that holds them whole."""
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return cls(
            {path.name: path},
            {
                n: {"shape": s, "pieces": [{"file": path.name, "offset": [0] * len(s), "shape": s}]}
                for n, s in shapes.items()
            },
        )

    def under(self, other: "Stored") -> "Stored":
        """Return all tensors of both; of one name, the other's."""
        return Stored({**self.files, **other.files}, {**self.index, **other.index})

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> "torch.Tensor":
        shape = self.shape(name)
        return self.region(name, (0,) * len(shape), shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return tuple(self.index[name]["shape"])

    def part(self, name: str, piece: Piece) -> "torch.Tensor":
        """Return the part of a tensor that a piece holds.

        Raises:
            UserError: the stored tensor has another shape.
        """
        shape = self.shape(name)
        if shape != piece.shape:
            raise UserError(f"the checkpoint does not fit: {name} is {list(shape)} there, {list(piece.shape)} here")
        return self.region(name, piece.offset, tuple(piece.tensor.shape))

    def region(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> "torch.Tensor":
        """Return a block of a tensor, on the CPU, read from whichever pieces it lies in."""
        import torch

        found = None
        for piece in self.index[name]["pieces"]:
            begin = [max(a, b) for a, b in zip(offset, piece["offset"], strict=True)]
            end = [min(a + n, b + m) for a, n, b, m in zip(offset, shape, piece["offset"], piece["shape"], strict=True)]
            if any(b >= e for b, e in zip(begin, end, strict=True)):
                continue
            if not shape:
                return self._tensor(piece["file"], name)
            source = self._file(piece["file"]).get_slice(name)
            block = source[tuple(slice(b - o, e - o) for b, e, o in zip(begin, end, piece["offset"], strict=True))]
            if tuple(block.shape) == shape:
                return block
            if found is None:
                found = torch.empty(shape, dtype=block.dtype)
            found[tuple(slice(b - o, e - o) for b, e, o in zip(begin, end, offset, strict=True))] = block
        if found is None:  # nothing of it is wanted; an empty piece still has the file's type
            piece = self.index[name]["pieces"][0]
            return self._tensor(piece["file"], name).new_empty(shape)
        return found

    def _file(self, name: str) -> Any:
        from safetensors import safe_open

        if name not in self._open:
            if name not in self.files:
                raise UserError(f"the checkpoint holds no {name}")
            self._open[name] = safe_open(str(self.files[name]), framework="pt")
        return self._open[name]

    def _tensor(self, file: str, name: str) -> "torch.Tensor":
        tensor: torch.Tensor = self._file(file).get_tensor(name)
        return tensor


def open_tensors(found: Found, name: str) -> Stored:
    """Return the tensors of `<name>`, read as they are asked for, whether one file holds them or one a process."""
    if f"{name}.safetensors" in found.files:
        return Stored.whole(found.files[f"{name}.safetensors"])
    index = load_document(found, INDEX) if f"{INDEX}.json" in found.files else {}
    if name not in index:
        raise UserError(f"{found.location}: holds no {name}.safetensors")
    return Stored(found.files, index[name])


def load_document(found: Found, name: str) -> Any:
    """Return the content of `<name>.json`."""
    if f"{name}.json" not in found.files:
        raise UserError(f"{found.location}: holds no {name}.json")
    try:
        return load_json(found.files[f"{name}.json"].read_bytes())
    except ValueError as error:
        raise UserError(f"{found.location}: {name}.json is damaged: {error}") from error
