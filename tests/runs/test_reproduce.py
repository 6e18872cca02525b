"""A run once more: its data are prepared for what it learned."""

from pathlib import Path

from skytune.config import RunConfig
from skytune.job import JobDir
from skytune.launch import train
from skytune.runs.catalog import RunRecord
from skytune.runs.reproduce import run_again
from skytune.tasks.prepared import prepared


def test_a_run_over_numbers_is_the_same_the_second_time(here: None, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "stars.csv"
    file.write_text("text,label\n" + "".join(f"good film {n},{n / 4}\n" for n in range(40)))
    config = RunConfig.parse(
        {
            "task": {"name": "regression"},
            "data": {"source": "files", "train": str(file), "text": "text", "label": "label"},
            "model": {"name": str(tiny_model)},
            "compute": {"device": "cpu"},
            "batch": {"global_size": 8},
            "max_steps": 2,
        }
    )
    found = prepared(config, config.seed)
    assert found.validation is not None and found.test is not None
    splits = {"validation": found.validation, "test": found.test}
    first = RunRecord.read(Path(train(config, found.train, splits, found.tokenizer, {}).result["run_folder"]))
    second = run_again(first, JobDir(first.folder).job.config, {})
    assert second.same, second.difference
