"""What is written of an experiment: the table before the page, each file whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, UserError
from skytune.experiment.results import PAGE, draw, in_numbers, summary
from skytune.experiment.store import ResultsStore
from skytune.experiment.table import CSV, PARQUET, README, frame, records, write_table
from skytune.report.scoring import write_file

ROW: dict[str, Any] = {
    "experiment": "e",
    "cell": "a",
    "status": "done",
    "seed": 1,
    "total_s": 2.5,
    "accuracy": 0.5,
    "attempts": 1,
    "factor_rows": 48,
}


def test_the_table_is_there_whatever_happens_to_the_page(
    design: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> str:
        raise ValueError("no such font")

    monkeypatch.setitem(draw.__globals__, "build_experiment_page", broken)  # the package has a function of that name
    with pytest.raises(ValueError, match="no such font"):
        draw(design(factors={"rows": [48]}), frame([ROW]))
    folder = ResultsStore("test").path
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [README, CSV, PARQUET]


def test_names_with_dollars_make_a_table_and_a_page(design: Callable[..., RunConfig]) -> None:
    config = design(factors={"model": ["$a_$", "b"]})
    rows = [
        {**ROW, "cell": name, "factor_model": name, "total_s": 2.0 + i, "accuracy": 0.5 + i / 10}
        for i, name in enumerate(("$a_$", "b"))
    ]
    page = draw(config, frame(rows))
    assert "$a_$" in page and (ResultsStore("test").path / PAGE).read_text() == page


@pytest.mark.parametrize("name", [PARQUET, CSV, README, PAGE])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def write() -> None:
        write_table(frame([ROW]), tmp_path)
        write_file(tmp_path / PAGE, b"<p>new</p>")

    (tmp_path / name).write_bytes(b"as it was")
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if name in path.name:
            write_bytes(path, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left on device"):
        write()
    assert (tmp_path / name).read_bytes() == b"as it was"
    assert not list(tmp_path.glob(".*.part"))
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    write()
    assert (tmp_path / name).read_bytes() != b"as it was" and not list(tmp_path.glob(".*.part"))


def test_what_never_started_cost_nothing(design: Callable[..., RunConfig]) -> None:
    stopped = {**ROW, "cell": "b", "status": "stopped", "reason": "budget", "attempts": 0, "total_s": None}
    table = frame([{**ROW, "usd_total": 0.25}, stopped])
    assert [row["usd_total"] for row in records(table)] == [0.25, 0.0]
    text = summary(design(factors={"rows": [48]}), table)
    assert "n/a (no price known)" not in text and "cost   $0.25" in text and "without a known price" not in text
    assert in_numbers(table)["usd"] == 0.25
    assert "usd" not in in_numbers(frame([ROW, stopped])), "what the first one cost is unknown"
    assert in_numbers(frame([stopped]))["usd"] == 0 and "usd" not in in_numbers(frame([]))
    text = summary(design(factors={"rows": [48]}), frame([ROW, stopped]))
    assert "cost   n/a (no price known)" in text
    text = summary(design(factors={"rows": [48]}), frame([ROW, {**ROW, "usd_total": 0.25}, stopped]))
    assert "cost   $0.25 (1 cell without a known price not counted)" in text
