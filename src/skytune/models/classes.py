"""Lists of classes that meet: a head's, a checkpoint's, a data set's, those of `data.labels`; matched by name."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""A whole number as a program writes it: 3, -1, 2.0. Others (01, +1, 1.5) are read as names."""

WORD = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Z_][\w-]*|-?(?:0|[1-9][0-9]*)", re.ASCII | re.IGNORECASE)
"""What Hydra reads as it stands, and as text."""


def whole_number(text: str) -> int | None:
    """Return the number that a text is, None where it is a name."""
    return int(text.partition(".")[0]) if WHOLE.fullmatch(text) else None


def own_classes(id2label: Mapping[Any, Any] | None) -> list[str]:
    """Return the class names that a model's configuration brings, in the order of their numbers."""
    return [str(name) for _, name in sorted((id2label or {}).items(), key=lambda item: int(item[0]))]


def sizes_offered(names: Sequence[str], vocabulary: int | None) -> dict[str, Any]:
    """Return what a network of the user's own may ask for: its classes, and the tokens where there are any."""
    own = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    own["label2id"] = {name: number for number, name in enumerate(names)}
    return own if vocabulary is None else {**own, "vocab_size": vocabulary}


def are_unnamed(names: Sequence[str]) -> bool:
    """Whether these are no names but numbers from 0, as such or as the library's own LABEL_0, LABEL_1."""
    return all(name in (f"LABEL_{number}", str(number)) for number, name in enumerate(names))


def match_classes(names: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """Return the position in `known` of every name, None where it has none.

    Names are equal as they stand, as whole numbers (`1.0` and `1`), or but for their case where that is not ambiguous.
    """
    found: list[int | None] = [None] * len(names)
    for form in (str, whole_number, str.casefold):
        ours, others = [form(name) for name in names], [form(name) for name in known]
        once = {key for key, count in Counter(others).items() if count == 1}
        doubled = {key for key, count in Counter(ours).items() if count > 1}
        place = {key: number for number, key in enumerate(others) if key in once - doubled - {None}}
        found = [place.get(key) if number is None else number for number, key in zip(found, ours, strict=True)]
    return found


def label_map_word(pairs: Iterable[tuple[str, str]]) -> str:
    """Return `data.label_map={...}` as it is typed into a shell."""
    inside = ",".join(f"{quoted_text(text)}:{quoted_text(name)}" for text, name in pairs)
    return shlex.quote(f"data.label_map={{{inside}}}")


def labels_word(names: Iterable[str]) -> str:
    """Return `data.labels=[...]` as it is typed into a shell."""
    return shlex.quote(f"data.labels=[{','.join(map(quoted_text, names))}]")


def quoted_text(text: str) -> str:
    """Return a text as it stands in a list or mapping of the command line."""
    return text if WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)
