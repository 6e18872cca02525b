"""What a run's model says to held-out rows, and whether it was trained on them: real runs over files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import ModelStage, PromoteConfig, RunConfig, UserError
from skytune.job import JobDir
from skytune.launch import train
from skytune.release.decision import decide
from skytune.release.gate import base_of, on_the_gate
from skytune.tasks.prepared import prepared

LIMITS = PromoteConfig(stage=ModelStage.production, max_calibration_rise=1.0, max_class_drop=1.0)


@pytest.fixture
def files(tmp_path: Path, sentences: Callable[[int, int], list[tuple[str, int]]]) -> Callable[[str, list[Any]], str]:
    def write(name: str, rows: list[tuple[str, int]]) -> str:
        file = tmp_path / name
        file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
        return str(file)

    return write


@pytest.fixture
def trained(tiny_model: Path, here: None) -> Callable[..., str]:
    """Return a function that trains on files; it returns where the model lies."""

    def make(train_file: str, test_file: str, **groups: Any) -> str:
        values: dict[str, Any] = {"model": {"name": str(tiny_model)}, "compute": {"device": "cpu"}, "max_steps": 3}
        values["schedule"] = {"name": "constant", "warmup_ratio": 0.0}
        values["data"] = {"source": "files", "train": train_file, "test": test_file, **groups.pop("data", {})}
        config = RunConfig.parse({**values, "batch": {"global_size": 8}, **groups})
        found = prepared(config, config.seed)
        splits = {"validation": found.validation, "test": found.test}
        return str(train(config, found.train, splits, found.tokenizer, {}).job.model)

    return make


def test_predictions_of_the_training_are_taken_and_others_made(trained: Any, files: Any, sentences: Any) -> None:
    rows = list(dict.fromkeys(sentences(200, 3)))
    train_file, test_file, gate = (
        files(n, r) for n, r in (("a.csv", rows[:80]), ("b.csv", rows[80:120]), ("c.csv", rows[120:]))
    )
    model = trained(train_file, test_file)
    config = RunConfig.parse(base_of(model))
    runs = Path(model).parents[2]
    stored = on_the_gate(config, model)
    assert len(list(runs.glob("*/job.json"))) == 1, "nothing was predicted"
    assert stored.trained_on == 0 and stored.metric == "accuracy" and len(stored.rows) == 40
    other = RunConfig.parse({**base_of(model), "data": {**base_of(model)["data"], "test": gate}})
    made = on_the_gate(other, model)
    assert made.trained_on == 0 and len(made.rows) == len(rows) - 120
    back = RunConfig.parse({**base_of(model), "data": {**base_of(model)["data"], "test": train_file}})
    assert on_the_gate(back, model).trained_on == 72, "eight of them validated"
    # The very rows that were predicted at the end of the training, predicted anew.
    JobDir(Path(model).parents[1]).predictions("test").unlink()
    again = on_the_gate(config, model)
    order = np.argsort(again.rows)
    one, two = again.on(again.rows[order]), stored.on(again.rows[order])
    np.testing.assert_allclose(one.collected.dense(), two.collected.dense(), atol=1e-5)
    np.testing.assert_array_equal(one.targets, two.targets)


def test_leaks_that_were_kept_are_counted(trained: Any, files: Any, sentences: Any) -> None:
    rows = list(dict.fromkeys(sentences(120, 4)))
    train_file, test_file = files("a.csv", rows[:80]), files("b.csv", rows[70:110])
    model = trained(train_file, test_file, data={"drop_leaks": False, "validation_fraction": 0.05})
    found = on_the_gate(RunConfig.parse(base_of(model)), model)
    assert 8 <= found.trained_on <= 10, "those that were not cut off for validation"
    clean = trained(train_file, test_file)
    assert on_the_gate(RunConfig.parse(base_of(clean)), clean).trained_on == 0


def test_two_seeds_and_one_that_learned_more(trained: Any, files: Any, sentences: Any) -> None:
    """Real runs on the same rows: the better one of two seeds is better by luck; more training is a real gain."""
    rows = list(dict.fromkeys(sentences(1000, 6)))
    here = files("a.csv", rows[:400]), files("b.csv", rows[400:800])
    same: dict[str, Any] = {"optimizer": {"lr": 5e-3}, "data": {"seed": 1}}
    models = [trained(*here, max_steps=9, seed=seed, **same) for seed in (1, 2)]
    config = RunConfig.parse(base_of(models[0]))
    scores = [on_the_gate(config, model) for model in models]
    worse, better = sorted(scores, key=lambda found: decide(found, None, LIMITS, "m").values[1] or 0)
    assert worse.name != better.name
    luck = decide(better, worse, LIMITS, "m")
    assert not luck.accepted and "better by more than chance" in luck.line, luck.line
    longer = on_the_gate(config, trained(*here, max_steps=100, seed=1, **same))
    gain = decide(longer, better, LIMITS, "m")
    assert gain.accepted and gain.values[1] > 0.95, gain.line
    # A gate on which one of the two was trained decides nothing.
    swapped = on_the_gate(config, trained(*reversed(here), max_steps=9, seed=3, **same))
    assert swapped.trained_on > 300
    assert (
        f"held-out rows that {swapped.name} was trained on: {swapped.trained_on} of"
        in decide(longer, swapped, LIMITS, "m").line
    )


def test_a_run_without_its_record(trained: Any, files: Any, sentences: Any) -> None:
    rows = list(dict.fromkeys(sentences(80, 5)))
    model = trained(files("a.csv", rows[:50]), files("b.csv", rows[50:]))
    config = RunConfig.parse(base_of(model))
    shutil.rmtree(Path(model).parents[1] / "inputs" / "train")
    with pytest.raises(UserError, match=r"the record of the rows that it was trained on .* is gone"):
        on_the_gate(config, model)
