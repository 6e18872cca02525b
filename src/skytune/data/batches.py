"""Token rows to padded batches, straight from memory-mapped Arrow buffers: no `datasets`, no Python objects per row."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import UserError
from .tables import read_split

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from .pixels import Images, Pixels

IGNORED = -100
"""Label of padding, as torch's cross entropy leaves it out."""


SEQUENCES, KEPT = 64, 8
"""Where few shapes are wanted, borders come in multiples of the one, and what counts in that share of a width."""


@dataclass(frozen=True)
class Padding:
    """How a tokenizer fills rows up to one length."""

    token: int = 0
    """Number of the padding token."""

    left: bool = False
    """Whether rows are filled up on the left (XLNet)."""

    pixels: "Pixels | None" = None
    """How images become numbers (see `pixels`), where rows are images."""

    types: bool = False
    """Whether rows that lack `token_type_ids` get zeros: not for every model the same as none (XLNet)."""


@dataclass(frozen=True)
class Ragged:
    """A column of variable-length rows: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray
    longest: int = 1

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of_lengths(cls, values: np.ndarray, lengths: np.ndarray) -> "Ragged":
        """Return rows of these lengths that lie one after the other."""
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
        return cls(values, offsets, int(lengths.max(initial=1)))

    @classmethod
    def of(cls, rows: "np.ndarray | list[np.ndarray]") -> "Ragged":
        """Return the rows of an array [n, k], or arrays of any lengths."""
        if isinstance(rows, np.ndarray):
            return cls.of_lengths(rows.reshape(-1), np.full(len(rows), rows[0].size if len(rows) else 0))
        return cls.of_lengths(
            np.concatenate([np.zeros(0, np.float32), *rows]), np.array([row.size for row in rows], int)
        )

    @classmethod
    def joined(cls, parts: "list[Ragged]") -> "Ragged":
        """Return the rows of all parts, one after the other."""
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(np.diff(part.offsets) for part in parts)])
        return cls.of_lengths(np.concatenate([np.zeros(0, np.float32), *(part.values for part in parts)]), lengths)

    def count(self, chosen: np.ndarray) -> np.ndarray:
        """Return how many values of each row are chosen (bool, as `values`), int64 [rows]."""
        found = np.concatenate([[0], np.cumsum(chosen)])
        return found[self.offsets[1:]] - found[self.offsets[:-1]]

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return these rows, in this order."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        taken = Ragged.of_lengths(self.values, lengths)
        index = np.arange(taken.offsets[-1]) + np.repeat(self.offsets[rows] - taken.offsets[:-1], lengths)
        return Ragged(self.values[index], taken.offsets, taken.longest)

    def dense(self) -> np.ndarray:
        """Return rows that all have one length as an array [n, k]."""
        return self.values.reshape(len(self), -1) if len(self) else self.values.reshape(0, 0)

    def padded(self, rows: np.ndarray, width: int, fill: int | float, left: bool = False) -> np.ndarray:
        """Return the rows as one array of shape [len(rows), width], filled up on the right, or on the left."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(width) - (width - lengths[:, None] if left else 0)
        inside = (columns >= 0) & (columns < lengths[:, None])
        if not len(self.values):
            return np.full(inside.shape, fill, dtype=self.values.dtype)
        index = np.clip(starts[:, None] + columns, 0, len(self.values) - 1)
        return np.where(inside, self.values[index], np.asarray(fill, dtype=self.values.dtype))


class TokenTable:
    """One split, ready to be cut into batches.

    Attributes:
        lengths: int64 [rows], tokens of every row (1 where there are no tokens).
        labels: int64 [rows], one class a row; None where there is something else.
        one_length: whether a batch may hold rows of one length only, because the model's logits depend on padding.
    """

    one_length = False
    widest: int | None = None
    """Places that the model has for tokens; None where it does not say."""

    streamed = False
    """Whether training lays the rows of a micro-batch out as one (`stream`)."""
    unpadded = False
    """Whether it does so inside the model's blocks alone (`models.unpadded`)."""

    def __init__(self, table: "pa.Table", padding: Padding = Padding()) -> None:
        self.rows = table.num_rows
        self.padding = padding
        self.columns: dict[str, Any] = {name: column(table.column(name)) for name in table.column_names}
        first = self.columns.get("input_ids")
        ragged = first if isinstance(first, Ragged) else None
        if ragged is not None and padding.types and "token_type_ids" not in self.columns:
            zeros = np.broadcast_to(np.int8(0), ragged.values.shape)
            self.columns["token_type_ids"] = Ragged(zeros, ragged.offsets, ragged.longest)
        self.lengths = np.diff(ragged.offsets) if ragged is not None else np.ones(self.rows, dtype=np.int64)
        self.targets: np.ndarray | Ragged | None = self.columns.get("labels")
        labels = self.targets
        self.labels = labels.astype(np.int64) if isinstance(labels, np.ndarray) and labels.ndim == 1 else None
        self.images: Images | None = None
        if padding.pixels is not None:
            self.images = padding.pixels.images(self.columns.pop("image"), self.labels)
            self.columns["pixel_values"] = self.images

    @classmethod
    def open(cls, folder: Path, padding: Padding = Padding()) -> "TokenTable":
        """Open the folder of one split; nothing is read before it is needed."""
        return cls(read_split(folder), padding)

    def __len__(self) -> int:
        return self.rows

    def largest(self, name: str = "input_ids") -> int:
        """Return the largest number of a column of lists (of the token ids), -1 where there are none."""
        column = self.columns.get(name)
        return int(column.values.max()) if isinstance(column, Ragged) and len(column.values) else -1

    def count(self, token: int) -> np.ndarray:
        """Return how often a token stands in each row, int64 [rows]."""
        column: Ragged = self.columns["input_ids"]
        return column.count(column.values == token)

    def stream(
        self, rows: np.ndarray, multiple: int = 1, least: tuple[int, int] | None = None
    ) -> dict[str, "torch.Tensor"]:
        """Return rows of tokens one after the other, as one row without padding between them.

        `input_ids`, `labels` and whatever else is a list a row become [1, width]; `position_ids` begin at 0 with every
        row (and where the rows' own do); `borders` (int32 [sequences + 1]) are the places at which something begins;
        `kept` (int64 [units]) are those after which a label comes. The width is a multiple of `multiple`; what fills
        it up are sequences of their own, none longer than the longest row.

        Args:
            least: have `borders` and `kept` come in few lengths, these or larger ones: more borders lie at the end,
                with nothing between them, and -1 stands for a place that does not count.
        """
        import torch

        lengths = self.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        filled = -(-total // multiple) * multiple - total
        place = np.arange(total) - np.repeat(starts, lengths)
        index = np.repeat(self.columns["input_ids"].offsets[rows], lengths) + place
        found = {name: c.values[index].astype(np.int64) for name, c in self.columns.items() if isinstance(c, Ragged)}
        found.setdefault("position_ids", place)
        fills = {"input_ids": np.full(filled, self.padding.token), "labels": np.full(filled, IGNORED)}
        places = np.arange(filled) % self.columns["input_ids"].longest
        for name, values in found.items():
            found[name] = np.concatenate([values, fills.get(name, places)])
        borders = np.append(np.flatnonzero(found["position_ids"] == 0), total + filled)
        kept = np.flatnonzero(found["labels"] != IGNORED) - 1
        if least is not None:
            grain = -(-(total + filled) // KEPT)
            more = [least[0] - len(borders), least[1] - len(kept)]
            more = [n if n >= 0 else n % size for n, size in zip(more, (SEQUENCES, grain), strict=True)]
            borders = np.pad(borders, (0, more[0]), mode="edge")
            kept = np.pad(kept, (0, more[1]), constant_values=-1)
        tensors = {name: torch.from_numpy(values.astype(np.int64)[None]) for name, values in found.items()}
        return tensors | {"borders": torch.from_numpy(borders.astype(np.int32)), "kept": torch.from_numpy(kept)}

    def places(self) -> np.ndarray:
        """Return how many sequences begin in each row, and how many of its labels count: int64 [rows, 2]."""
        labels, starts = self.columns["labels"], self.columns.get("position_ids")
        begin = np.ones(len(self), np.int64) if starts is None else starts.count(starts.values == 0)
        return np.stack([begin, labels.count(labels.values != IGNORED)], 1)

    def batch(
        self,
        rows: np.ndarray,
        multiple: int = 1,
        epoch: int | None = None,
        raw: bool = False,
        own_width: bool = False,
    ) -> dict[str, "torch.Tensor"]:
        """Return the rows as tensors by column: [n], or [n, width] padded to the longest row here.

        Integers become int64, floats float32. `input_ids` are padded with the tokenizer's padding id, `labels` with
        -100, everything else with 0, on the tokenizer's side. The width is a multiple of `multiple`, but never more
        than the split's longest row needs.

        Args:
            epoch: the pass over the train split in which the rows are learned: images are changed as its augmentation
                says, and where they are mixed `labels` are shares, float32 [n, classes]. None: as they are.
            raw: images may be shades, uint8, that `pixels.scaled` makes the model's numbers of.
            own_width: let the width be more than the split's longest row needs, up to `widest`, so that it does not
                depend on other rows.
        """
        import torch

        tensors = {}
        shares = None
        for name, column in self.columns.items():
            if column is self.images:
                values, shares = self.images.batch(rows, epoch, raw)
                tensors[name] = torch.from_numpy(values)
                continue
            if isinstance(column, Ragged):
                most = max(column.longest, self.widest or 0) if own_width else column.longest
                longest = int((column.offsets[rows + 1] - column.offsets[rows]).max(initial=1))
                width = longest if self.one_length else min(-(-longest // multiple) * multiple, most)
                fill = {"input_ids": self.padding.token, "labels": IGNORED}.get(name, 0)
                values = column.padded(rows, width, fill, self.padding.left)
            elif isinstance(column, np.ndarray):
                values = column[rows]
            else:
                values = np.asarray(column.take(rows).to_pylist())
            kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64
            tensors[name] = torch.from_numpy(np.ascontiguousarray(values, dtype=kind))
        return tensors if shares is None else tensors | {"labels": torch.from_numpy(shares)}


def column(values: "pa.ChunkedArray") -> Any:
    """Return an Arrow column as Ragged (lists), ndarray (numbers; float32 [rows, fields] of structs of numbers) or, for
    anything else, as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if values.null_count:
        raise UserError(f"a column of the split has {values.null_count} empty values")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
            return values
        return _ragged(values)
    if pa.types.is_struct(kind):
        fields = [column(pc.struct_field(values, [place])) for place in range(kind.num_fields)]
        if not all(isinstance(found, np.ndarray) and found.ndim == 1 for found in fields):
            return values
        return np.stack(fields, axis=1).astype(np.float32)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        parts = [_numbers(chunk) for chunk in values.chunks] or [values.to_numpy()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    return values


def _numbers(array: "pa.Array") -> np.ndarray:
    """Return an Arrow array as numpy, a view if it has no gaps. Arrow's `to_numpy` imports pandas first (0.4 s)."""
    import pyarrow as pa

    if array.null_count or pa.types.is_boolean(array.type):
        return array.to_numpy(zero_copy_only=False)
    return np.from_dlpack(array)


def _ragged(column: "pa.ChunkedArray") -> Ragged:
    """Join the chunks; one chunk stays a view of the mapped file."""
    values, offsets, total = [], [np.zeros(1, dtype=np.int64)], 0
    for chunk in column.chunks:
        cut = _numbers(chunk.offsets).astype(np.int64)
        # `chunk.values` ignores a slice of the chunk, the offsets do not.
        values.append(_numbers(chunk.values)[cut[0] : cut[-1]])
        offsets.append(cut[1:] - cut[0] + total)
        total += int(cut[-1] - cut[0])
    if not values:
        return Ragged(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    joined = np.concatenate(offsets)
    longest = int(np.diff(joined).max(initial=1))
    return Ragged(values[0] if len(values) == 1 else np.concatenate(values), joined, longest)
