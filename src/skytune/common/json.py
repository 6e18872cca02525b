"""JSON that others wrote: read as data, whatever it holds."""

import json
from typing import Any, TypeVar

_LARGEST = 256 * 2**20  # bytes: no file of ours comes near it, and parsing takes a multiple of it as memory

_DEEPEST = 200  # far below what Python takes, so that whoever walks through the values has room, too

T = TypeVar("T")


def load_json(data: bytes | str, expect: type[T] | None = None, largest: int = _LARGEST) -> Any:
    """Return what JSON bytes that others wrote hold; with `expect` (dict, list), that it is of that type.

    Raises:
        ValueError: Not JSON, not of that type, nested too deeply, or longer than `largest` bytes. Nothing else.
    """
    if not isinstance(data, bytes | bytearray | str):
        raise ValueError(f"not JSON text but {type(data).__name__}")
    if len(data) > largest:
        raise ValueError(f"{len(data):,} bytes of JSON, more than {largest:,}")
    try:
        value = json.loads(data)
        if _depth(value) > _DEEPEST:
            raise RecursionError
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if expect is not None and not isinstance(value, expect):
        raise ValueError(f"JSON holds {type(value).__name__}, not {expect.__name__}")
    return value


def _depth(value: Any) -> int:
    """Return how deep lists and objects lie in each other."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth
