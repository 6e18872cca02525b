from typing import Any

import numpy as np
import pytest
from pictures import encoded, pixels
from sklearn.metrics import top_k_accuracy_score

from skytune.config import ConfigError, RunConfig, UserError, from_dict
from skytune.data.batches import Padding, Ragged, TokenTable
from skytune.data.pixels import Pixels
from skytune.launch.run_dir import identity_config
from skytune.report.page import build_report
from skytune.tasks import TASKS, Scoring, resolved
from skytune.tasks.image_classification import ready
from skytune.tasks.metrics import compute
from skytune.training.train_step import loader_processes

TASK = TASKS["image-classification"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, 40])
def test_top_5_is_scikit_learns(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    logits, labels = random.normal(size=(rows, 9)), random.integers(0, 9, rows)
    labels[0] = 8 if seed else labels[0]
    found = compute(["accuracy", "top_5"], {}, logits, labels)
    assert found["top_5"] == pytest.approx(top_k_accuracy_score(labels, logits, k=5, labels=range(9)), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_of_five_classes_all_are_among_the_five_first(classes: int) -> None:
    assert compute(["top_5"], {}, np.zeros((3, classes)), np.zeros(3, int))["top_5"] == 1.0


class Pictures:
    """Rows of a split, by number."""

    own = None

    def __len__(self) -> int:
        return 60

    def row(self, place: int) -> dict[str, Any]:
        return {"image": encoded(pixels(place)), "labels": 0}

    def __getitem__(self, place: int) -> str:
        return f"{place}.png"


def test_the_report_shows_the_worst_mistakes_as_small_images() -> None:
    random = np.random.default_rng(0)
    labels, logits = np.zeros(60, int), random.normal(size=(60, 3)) + np.array([0, 2, 0])
    names = ["cat", "<dog>", "owl"]
    scored = TASK.score(
        Ragged.of(logits.astype(np.float32)), labels, Scoring(names=names, metrics=["accuracy"], shown=Pictures())
    )
    (section,) = scored.sections
    misses = section.values["mistakes"]
    assert len(misses) == 24 and misses[0]["probability"] == max(miss["probability"] for miss in misses)
    page = build_report(
        title="run",
        training={},
        history=[],
        evaluations={"test": scored.as_dict()},
        config={},
        data_notes={},
        labels=names,
        links={},
    )
    assert page.count('src="data:image/jpeg;base64,') == 24 and "&lt;dog&gt;" in page and len(page) < 400_000


def test_augmentation_decides_the_run_only_where_there_is_some_and_needs_images() -> None:
    plain = identity_config(from_dict(RunConfig, {}))
    assert "augment" not in plain
    config = from_dict(RunConfig, {"augment": {"flip": 0.5}})
    assert identity_config(config)["augment"]["flip"] == 0.5
    from datasets import ClassLabel, List, Value

    features = {"labels": ClassLabel(names=["a", "b"])}
    with pytest.raises(ConfigError, match=r"augment.\*: task=text-classification has no images; leave these keys out"):
        resolved(config, {**features, "input_ids": List(Value("int32"))})
    found = resolved(config, {**features, "image": Value("large_binary")})
    assert found.task.name == "image-classification" and found.checkpoint.metric == "accuracy"


def test_images_are_decoded_in_processes_and_tokens_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**40}))
    images, tokens = (type("Table", (), {"images": value}) for value in (1, None))
    given: list[tuple[Any, int | None]] = [(tokens, None), (images, None), (images, 0), (tokens, 3)]
    assert [loader_processes(asked, table) for table, asked in given] == [0, 14, 0, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert loader_processes(None, images) == 2
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**26}))
    assert loader_processes(None, images) == 0 or not os.path.isdir("/dev/shm")


def test_a_network_that_takes_no_images_of_this_size_says_so(tiny_vit: Any) -> None:
    import pyarrow as pa
    from transformers import ViTForImageClassification, ViTImageProcessorPil

    model = ViTForImageClassification.from_pretrained(tiny_vit).train()
    contents = pa.array([encoded(pixels(row)) for row in range(2)], pa.large_binary())
    for size in (16, 24):
        made = Pixels(ViTImageProcessorPil(size={"height": size, "width": size}))
        table = TokenTable(pa.table({"image": contents, "labels": [0, 1]}), Padding(pixels=made))
        if size == 16:
            ready(model, {"train": table})
            assert model.training
            continue
        with pytest.raises(UserError, match=r"does not compute images of 3 x 24 x 24 \(data.image_size=null takes"):
            ready(model, {"train": table})
