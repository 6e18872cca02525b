"""What is written of an experiment: the table before the page, each file whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, UserError, from_dict, to_dict
from skytune.data import prepare
from skytune.launch import train
from skytune.report.scoring import write_file
from skytune.study import ResultsStore, cells_of, make_plan, run_experiment
from skytune.study.results import PAGE, draw, in_numbers, results, summary
from skytune.study.table import CSV, PARQUET, README, frame, records, write_table

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


Design = Callable[..., RunConfig]


@pytest.fixture
def by_hand(design: Design, recorded: Any) -> Path:
    """The job of a plain training of 32 rows, with the seed of the first cell."""
    config = design({"data": {"max_rows": 32}, "pipeline": "training", "seed": 1, "name": "by-hand"})
    found = prepare(config.data, config.model, 42, {})
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    return train(config, found.train, {"validation": found.validation}, found.tokenizer, launcher=launcher).job.root


def adopting(design: Design, cell: str, job: Path, **keys: Any) -> RunConfig:
    values = to_dict(design(factors={"rows": [32, 64]}, **keys))
    return from_dict(RunConfig, {**values, "study": {**values["study"], "adopt": f"{cell}:{job}"}})


def test_a_job_is_taken_in_and_marked(design: Design, by_hand: Path, recorded: Any, prices: Any) -> None:
    first, second = cells_of(design(factors={"rows": [32, 64]}))
    table = results(adopting(design, first.name, by_hand))
    assert [(row.cell, row.origin, row.status) for row in table.itertuples()] == [(first.name, "adopted", "done")]
    assert table["accuracy"][0] == pytest.approx(0.75, abs=0.02)
    assert table["total_s"][0] == pytest.approx(5 + 2 + 0.32 + 1 + 1 + 0.5)
    # The study itself then runs the other one only.
    seen: list[int] = []

    def launchers(machine: Any) -> Any:
        seen.append(1)
        return recorded(machine)

    rows = run_experiment(design(factors={"rows": [32, 64]}), launchers, prices)
    assert [row["origin"] for row in rows] == ["adopted", "run"] and rows[1]["cell"] == second.name


@pytest.mark.parametrize(
    ("job", "message"),
    [("other", r"is not cell rows-64.*: data\.max_rows=32, the cell has 64"), ("none", r"holds no finished job")],
    ids=["another", "unfinished"],
)
def test_what_does_not_fit_is_refused(design: Design, by_hand: Path, tmp_path: Path, job: str, message: str) -> None:
    _, second = cells_of(design(factors={"rows": [32, 64]}))
    with pytest.raises(UserError, match=message):
        results(adopting(design, second.name, by_hand if job == "other" else tmp_path))
    assert ResultsStore("test").read() == {}


def test_no_such_cell(design: Design, by_hand: Path) -> None:
    with pytest.raises(UserError, match=r"^study\.adopt=x: no such cell; study\.dry_run=true lists them"):
        results(adopting(design, "x", by_hand))


def test_the_short_name_will_do(design: Design, by_hand: Path) -> None:
    first, _ = cells_of(design(factors={"rows": [32, 64]}))
    assert results(adopting(design, first.id, by_hand))["cell"].tolist() == [first.name]


@pytest.mark.parametrize("brought", [True, False], ids=["with its inputs", "outputs alone"])
def test_a_job_that_was_scored_on_other_rows_is_refused(
    design: Design, recorded: Any, brought: bool, tmp_path: Path
) -> None:
    import shutil

    config = design({"data": {"max_rows": 32}, "pipeline": "training", "seed": 1, "name": "by-hand"})
    found = prepare(config.data, config.model, config.seed, {})  # as run.py cuts them
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    job = train(config, found.train, {"validation": found.validation}, found.tokenizer, launcher=launcher).job.root
    if not brought:
        shutil.rmtree(job / "inputs")
    first, _ = cells_of(design(factors={"rows": [32, 64]}))
    with pytest.raises(UserError, match=r"has other rows than .* run the job with data\.seed=42$"):
        results(adopting(design, first.name, job))
    assert ResultsStore("test").read() == {}


def test_with_the_designs_data_seed_a_job_of_any_seed_fits(design: Design, recorded: Any) -> None:
    config = design({"data": {"max_rows": 32, "seed": 42}, "pipeline": "training", "seed": 1, "name": "by-hand"})
    found = prepare(config.data, config.model, config.seed, {})
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    job = train(config, found.train, {"validation": found.validation}, found.tokenizer, launcher=launcher).job.root
    first, _ = cells_of(design(factors={"rows": [32, 64]}))
    assert results(adopting(design, first.name, job))["origin"].tolist() == ["adopted"]


def test_a_job_of_another_device_is_refused(design: Design, recorded: Any) -> None:
    config = design({"data": {"max_rows": 32}, "pipeline": "training", "seed": 1, "name": "by-hand"})
    found = prepare(config.data, config.model, 42, {})
    keys = {"factors": {"compute": ["g5.xlarge"], "rows": [32]}, "prices": {"g5.xlarge": 1.0}}

    def adopted(accelerator: str) -> Any:
        launcher = recorded(type("M", (), {"devices": 1, "nodes": 1, "accelerator": accelerator})())
        job = train(config, found.train, {"validation": found.validation}, found.tokenizer, launcher=launcher).job.root
        values = to_dict(design(**keys))
        cell = cells_of(design(**keys))[0]
        taken = {**values["study"], "adopt": f"{cell.id}:{job}"}
        return results(from_dict(RunConfig, {**values, "study": taken}))

    with pytest.raises(UserError, match=r"it ran on cuda Tesla T4, the cell's g5\.xlarge has A10G"):
        adopted("Tesla T4")
    row = adopted("NVIDIA A10G").iloc[0]
    assert row["accelerator"] == "A10G" and row["usd_total"] == pytest.approx(row["total_s"] / 3600, rel=1e-4)
    assert make_plan(design(**keys)).spent == 0.0, "somebody else's money"


def test_what_the_benchmark_measured_itself_stays(design: Design, by_hand: Path, recorded: Any, prices: Any) -> None:
    first, _ = cells_of(design(factors={"rows": [32, 64]}))
    run_experiment(design(factors={"rows": [32, 64]}), recorded, prices)
    with pytest.raises(UserError, match=r"this cell has been run by the study; its row stays$"):
        results(adopting(design, first.name, by_hand))
    assert ResultsStore("test").read()[first.name]["origin"] == "run"
