"""What two runs differ in: keys, rows, packages, code, machines; from which step on their losses differ; and whether
their scores differ by more than chance, on the rows that both have scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.mappings import flatten
from ..config import RunConfig, UserError
from ..data.splits import key_of, normalize
from ..data.tables import content_hash, read_split
from ..job import JobDir
from ..launch.run_dir import identity_config
from ..training.outputs import read_predictions
from .catalog import RunRecord
from .paired import Paired, matched, paired

MACHINE = ("device", "world_size", "strategy", "precision", "micro_batch", "packed")
"""What `result.json` says of where it was computed."""


@dataclass(frozen=True)
class Difference:
    """A value that is another one in each of two runs; None where a run has none."""

    name: str
    values: tuple[Any, Any]
    decides: bool = True
    """Whether it can change what is learned."""


@dataclass(frozen=True)
class SplitRows:
    """A split of two runs."""

    name: str
    counts: tuple[int, int]
    shared: int
    """Rows that both have."""

    same: bool
    """Whether they are the same rows in the same order, with the same labels."""


@dataclass(frozen=True)
class Losses:
    """Training losses of two runs, at the steps that both have recorded."""

    steps: int
    """How many those are."""

    first: tuple[int, float, float] | None
    """The first step at which they differ, in any bit, and both losses; None where they do not."""

    largest: tuple[int, float]
    """The step where they differ most, and by how much (absolute)."""


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    names: tuple[str, str]
    keys: list[Difference]
    code: list[Difference]
    packages: list[Difference]
    machine: list[Difference]
    rows: list[SplitRows]
    losses: Losses | None
    scores: list[Difference]
    """By metric, those of the test split."""

    paired: Paired | None
    """On the test rows that both have."""

    predictions: int | None
    """In how many of those rows the logits differ in any bit; None where the runs have no rows in common."""


def compare(first: RunRecord, second: RunRecord) -> Comparison:
    """Compare two runs by what lies in their folders; what is missing there is left out.

    Raises:
        UserError: a folder without a job.
    """
    runs = (first, second)
    for run in runs:
        JobDir(run.folder).existing()
    prints = [run.values.get("fingerprints") or {} for run in runs]
    origins = [run.values.get("origin") or {} for run in runs]
    code = {"fingerprint of the code": [p.get("code") for p in prints]}
    code |= {name: [origin.get(name) for origin in origins] for name in ("git commit", "uncommitted changes")}
    start = [{"fingerprint of the initial weights": p.get("weights")} for p in prints]
    configs = [flatten(run.values.get("config") or {}) | weights for run, weights in zip(runs, start, strict=True)]
    deciding = {key for run in runs for key in _deciding(run)}
    keys = differences(*configs)
    test = _test_rows(first, second)
    return Comparison(
        names=(first.key, second.key),
        keys=[Difference(k.name, k.values, k.name in deciding or k.name.startswith(("data.", "finger"))) for k in keys],
        code=[Difference(name, (a, b)) for name, (a, b) in code.items() if a != b],
        packages=differences(*[run.result.get("versions") or run.values.get("versions") or {} for run in runs]),
        machine=differences(*[{name: run.result.get(name) for name in MACHINE} for run in runs]),
        rows=[_rows(first, second, name) for name in _splits(first) if name in _splits(second)],
        losses=losses(*[JobDir(run.folder).read_history() for run in runs]),
        scores=differences(*[run.scores.get("metrics") or {} for run in runs]),
        paired=None if test is None or test[0] is None else paired(*test[0]),
        predictions=None if test is None else test[1],
    )


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return the values that are not the same, by name."""
    names = sorted({*first, *second})
    return [Difference(n, (first.get(n), second.get(n))) for n in names if first.get(n) != second.get(n)]


def losses(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Losses | None:
    """Compare the records of two histories; None where no step is recorded in both."""
    one, two = ({r["step"]: r["loss"] for r in found if r.get("kind") == "step"} for found in (first, second))
    steps = sorted(one.keys() & two.keys())
    if not steps:
        return None
    other = [step for step in steps if one[step] != two[step]]
    apart = {step: abs((one[step] or 0.0) - (two[step] or 0.0)) for step in steps}
    most = max(steps, key=lambda step: apart[step])
    return Losses(len(steps), (other[0], one[other[0]], two[other[0]]) if other else None, (most, apart[most]))


def _deciding(run: RunRecord) -> set[str]:
    """Return the keys of a run's configuration that decide its result."""
    try:
        return set(flatten(identity_config(RunConfig.parse(run.values["config"]))))
    except (UserError, KeyError, TypeError):  # of another version: what it wrote down then
        return set(flatten(run.values.get("decisive") or {}))


def _splits(run: RunRecord) -> list[str]:
    return list(run.values.get("sizes") or {})


def _rows(first: RunRecord, second: RunRecord, name: str) -> SplitRows:
    tables = [_table(run, name) for run in (first, second)]
    sizes = [(run.values.get("sizes") or {})[name] for run in (first, second)]
    if tables[0] is None or tables[1] is None:
        return SplitRows(name, (sizes[0], sizes[1]), 0, False)
    if content_hash(tables[0]) == content_hash(tables[1]):
        return SplitRows(name, (sizes[0], sizes[1]), sizes[0], True)
    keys = [_keys(run, table) for run, table in zip((first, second), tables, strict=True)]
    return SplitRows(name, (sizes[0], sizes[1]), len(matched(*keys)[0]), False)


def _table(run: RunRecord, name: str) -> Any:
    try:
        return read_split(run.folder / "inputs" / name)
    except UserError:
        return None


def _keys(run: RunRecord, table: Any) -> np.ndarray:
    """Return a 64-bit key of every row: of its text in a form that all tokenizers give back alike, as far as they do;
    without a tokenizer, of its numbers."""
    columns = [name for name in table.column_names if name != "labels"]
    folder = run.folder / "inputs" / "tokenizer"
    if "input_ids" in columns and folder.is_dir():
        from ..models import read_tokenizer

        tokenizer = read_tokenizer(str(folder))
        texts = tokenizer.batch_decode(table["input_ids"].to_pylist(), skip_special_tokens=True)
        return np.array([key_of(normalize(text).encode()) for text in texts], np.uint64)
    rows = table.select(columns).to_pylist()
    return np.array([key_of(repr(row).encode()) for row in rows], np.uint64)


def _test_rows(first: RunRecord, second: RunRecord) -> tuple[tuple[np.ndarray, np.ndarray] | None, int] | None:
    """Return, of the test rows that both runs have predicted, the score of each row in each run (None where a row has
    none), and in how many the logits differ."""
    found = []
    for run in (first, second):
        path, table = JobDir(run.folder).predictions("test"), _table(run, "test")
        if table is None or not path.is_file():
            return None
        rows, labels, logits = read_predictions(path)
        found.append((rows, labels, logits, table))
    if content_hash(found[0][3]) == content_hash(found[1][3]):
        keys = [rows for rows, *_ in found]
    else:
        keys = [_keys(run, f[3])[f[0]] for run, f in zip((first, second), found, strict=True)]
    left, right = matched(*keys)
    if not len(left):
        return None
    one, two = found[0][2][left], found[1][2][right]
    apart = sum(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    scores = [_right(f[1][at], f[2][at]) for f, at in zip(found, (left, right), strict=True)]
    return (None if scores[0] is None or scores[1] is None else (scores[0], scores[1])), apart


def _right(labels: np.ndarray, logits: np.ndarray) -> np.ndarray | None:
    """Return which rows have the right class, as numbers; None where a row has something else than one class."""
    if labels.ndim != 1 or logits.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        return None
    return (logits.argmax(axis=1) == labels).astype(np.float64)
