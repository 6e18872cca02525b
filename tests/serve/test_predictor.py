"""A served model's answers are those of an evaluation, whatever else is asked at the same time."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from language_models import llama_folder
from tiny_architectures import make_model

from skytune.config import RunConfig, UserError, from_dict
from skytune.serve.predictor import Answer, Predictor

ROWS = 60


def opened(model: Path, **groups: Any) -> Predictor:
    return Predictor(str(model), from_dict(RunConfig, {"compute": {"device": "cpu"}, "precision": "fp32", **groups}))


def assert_same(answer: Any, logits: list[float]) -> None:
    """See that numbers differ by 1e-6 at most; those above 1, of which float32 knows seven digits, by that share."""
    assert isinstance(answer, Answer)
    assert np.abs(np.array(answer.logits) - logits).max() <= 1e-6 * max(1, np.abs(logits).max())


def in_groups(predictor: Predictor, rows: list[dict[str, Any]], seed: int) -> list[Any]:
    """Return the answers to rows that were asked for in any order, in groups of any size."""
    draw, order = random.Random(seed), list(range(len(rows)))
    draw.shuffle(order)
    answers: list[Any] = [None] * len(rows)
    while order:
        group, order = order[: (size := draw.choice([1, 2, 7, 32]))], order[size:]
        for number, answer in zip(group, predictor.answers([rows[number] for number in group]), strict=True):
            answers[number] = answer
    return answers


@pytest.mark.parametrize("task", ["text-classification", "multi-label", "regression", "token-classification"])
def test_logits_are_those_of_an_evaluation_in_any_batch(
    task: str,
    saved: Callable[[str], Path],
    evaluated: Callable[..., list[list[float]]],
    texts: Callable[..., list[str]],
) -> None:
    rows: list[Any] = texts(ROWS)
    if task == "token-classification":
        rows = [text.split() for text in rows]
    wanted = evaluated(task, saved(task), rows)
    predictor = opened(saved(task))
    assert predictor.task.name == task
    for seed in (1, 2):
        answers = in_groups(predictor, [{"text": row} for row in rows], seed)
        for answer, logits, row in zip(answers, wanted, rows, strict=True):
            assert_same(answer, logits)
            assert not answer.truncated
            if task == "token-classification":
                assert len(answer.values["prediction"]) == len(row)
            else:
                assert "prediction" in answer.values


def test_pairs_of_texts_are_those_of_an_evaluation_too(
    saved: Callable[[str], Path], evaluated: Callable[..., list[list[float]]], texts: Callable[..., list[str]]
) -> None:
    first, second = ([" ".join(text.split()[:20]) for text in texts(20, seed)] for seed in (1, 2))
    model = saved("text-classification")
    wanted = evaluated("text-classification", model, first, second)
    rows = [{"text": a, "text_pair": b} for a, b in zip(first, second, strict=True)]
    for answer, logits in zip(in_groups(opened(model), rows, 0), wanted, strict=True):
        assert_same(answer, logits)


def test_a_row_that_cannot_be_computed_does_no_harm_to_the_others(
    saved: Callable[[str], Path], texts: Callable[..., list[str]]
) -> None:
    predictor = opened(saved("text-classification"))
    rows = [*texts(5), "\u2003 \u00a0", *texts(5, 1)]
    found = predictor.answers([{"text": text} for text in rows])
    assert [number for number, answer in enumerate(found) if isinstance(answer, Exception)] == [5]
    assert isinstance(found[5], UserError)
    alone = [predictor.answers([{"text": text}])[0] for text in rows[:5]]
    for answer, other in zip(found, alone, strict=False):
        assert isinstance(other, Answer)
        assert_same(answer, other.logits)


def test_rows_that_are_cut_off_are_told_apart(saved: Callable[[str], Path]) -> None:
    predictor = opened(saved("text-classification"), data={"max_length": 10})
    rows = ["good film", "good " * 8, "good " * 9, "bad " * 50]  # two tokens are the tokenizer's own
    found = predictor.answers([{"text": text.strip()} for text in rows])
    assert [answer.truncated for answer in found if isinstance(answer, Answer)] == [False, False, True, True]


def test_where_logits_depend_on_padding_batches_have_one_length(
    tmp_path: Path, texts: Callable[..., list[str]]
) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = make_model("fnet", tmp_path / "fnet", texts(50))
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    predictor = opened(folder)
    assert predictor.one_length
    rows = [{"text": text} for text in texts(20)]
    alone = [predictor.answers([row])[0] for row in rows]
    for answer, other in zip(in_groups(predictor, rows, 4), alone, strict=True):
        assert isinstance(other, Answer)
        assert_same(answer, other.logits)


def test_a_language_model_is_left_to_vllm(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pip install vllm.*vllm serve"):
        opened(llama_folder(tmp_path / "llama"))


def test_rows_are_cut_as_in_training(saved: Callable[[str], Path], tmp_path: Path) -> None:
    import shutil

    from skytune.job import Job, JobDir

    job = JobDir(tmp_path / "run")
    config = from_dict(RunConfig, {"data": {"max_length": 12}})
    job.write_job(Job(kind="train", run_key="run", config=config, labels=["low", "even", "high"]))
    shutil.copytree(saved("text-classification"), job.model)
    assert opened(job.model).limit == 12
    assert opened(job.model, data={"max_length": 20}).limit == 20
    job.file.write_text("{}")
    assert opened(job.model).limit == 64  # of the tokenizer


def test_images_get_the_logits_of_the_plain_model(tiny_vit: Path, tmp_path: Path) -> None:
    from pictures import class_folder
    from PIL import Image
    from transformers import ViTForImageClassification, ViTImageProcessorPil

    class_folder(tmp_path / "new", ("a", "b"), 4)
    files = sorted((tmp_path / "new").rglob("*.png"))
    predictor = opened(tiny_vit)
    assert predictor.form == "image"
    rows = [{"image": file.read_bytes()} for file in files]
    found = in_groups(predictor, [*rows[:3], {"image": b"no image"}, *rows[3:]], 1)
    assert isinstance(found.pop(3), UserError)
    model, processor = (made.from_pretrained(tiny_vit) for made in (ViTForImageClassification, ViTImageProcessorPil))
    for file, answer in zip(files, found, strict=True):
        with Image.open(file) as image:
            assert_same(answer, model(**processor(image, return_tensors="pt")).logits[0].tolist())
