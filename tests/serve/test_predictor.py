"""A served model's answers are those of an evaluation, whatever else is asked at the same time."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import llama_folder
from tiny_architectures import make_model

from skytune.config import RunConfig, UserError, from_dict
from skytune.serve.batcher import Batcher
from skytune.serve.predictor import Answer, Predictor

ROWS = 60


def opened(model: Path, **groups: Any) -> Predictor:
    return Predictor(str(model), from_dict(RunConfig, {"compute": {"device": "cpu"}, "precision": "fp32", **groups}))


def assert_same(answer: Any, logits: list[float]) -> None:
    """See that no number differs by more than 1e-6."""
    assert isinstance(answer, Answer)
    assert np.abs(np.array(answer.logits) - logits).max() <= 1e-6


def in_groups(predictor: Predictor, rows: list[dict[str, Any]], seed: int) -> list[Any]:
    """Return the answers to rows that were asked for in any order, in requests of any size, in the server's batches."""
    draw, order = random.Random(seed), list(range(len(rows)))
    draw.shuffle(order)
    groups = []
    while order:
        size = draw.choice([1, 1, 2, 7, 32])
        groups.append(order[:size])
        order = order[size:]

    async def ask() -> list[list[Any]]:
        batcher = Batcher(predictor.answers, batch_size=draw.choice([3, 8, 32]), limit=len(rows))
        work = asyncio.create_task(batcher.run())
        found = [asyncio.ensure_future(batcher.answer([rows[number] for number in group])) for group in groups]
        done = await asyncio.gather(*found)
        work.cancel()
        return done

    answers: list[Any] = [None] * len(rows)
    for group, found in zip(groups, asyncio.run(ask()), strict=True):
        for number, answer in zip(group, found, strict=True):
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


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 62), min_size=1, max_size=40), size=st.integers(1, 40), at=st.integers(0, 39))
def test_what_is_computed_of_a_row_does_not_depend_on_its_batch(lengths: list[int], size: int, at: int) -> None:
    import pyarrow as pa
    import torch
    from torch.overrides import TorchFunctionMode
    from transformers import BertConfig, BertForSequenceClassification

    from skytune.config import Device
    from skytune.data.batches import TokenTable
    from skytune.distributed.context import join
    from skytune.training.inputs import widest
    from skytune.training.prediction import FEWEST, predict

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=99, max_position_embeddings=62, **sizes))
    torch.nn.init.normal_(model.classifier.weight)
    world = join(from_dict(RunConfig, {"compute": {"device": Device.cpu.value}}), 1)[1]

    multiplied: list[int] = []

    class Looking(TorchFunctionMode):
        """Writes down of how many rows a matrix is that is multiplied with weights."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.linear:
                multiplied.append(args[0].numel() // args[0].shape[-1])
            return func(*args, **(kwargs or {}))

    def logits(lengths: list[int]) -> np.ndarray:
        ids = [[(7 * place + length) % 99 for place in range(length)] for length in lengths]
        table = TokenTable(pa.table({"input_ids": ids, "attention_mask": [[1] * length for length in lengths]}))
        table.widest = widest(model)
        with Looking():
            found = predict(model, table, world, lambda output, _: output.logits.numpy(), batch_size=size)[1]
        return found.dense()

    at %= len(lengths)
    assert np.abs(logits(lengths)[at] - logits([lengths[at]])[0]).max() <= 1e-7
    assert min(multiplied) >= FEWEST, "fewer rows take other kernels, whose sums may differ"


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
