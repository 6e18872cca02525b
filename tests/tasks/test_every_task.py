"""What holds for every task: killed and resumed to the bit, equal for every split of the global batch, equal in plain
transformers, each row scored once, bad rows named. Workers are real process groups (see `forked_workers`)."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_dirs import Laid, _Stop, history, result, weights
from language_models import llama_folder

from skytune.config import DataConfig, ModelConfig, RunConfig, TaskConfig, UserError, from_dict
from skytune.data import prepare
from skytune.tasks import Scoring, find_task
from skytune.training.outputs import load_predictions, read_predictions

MOODS = {"good": 1, "fine": 1, "nice": 1, "bad": -1, "poor": -1, "dull": -1}
REST = ["the", "a", "film", "plot", "cast", "is", "was", "it"]
ROWS = 46
"""The last batch of an epoch has fewer than 8, so that processes and micro-batches get uneven shares."""


def texts(rows: int) -> list[list[str]]:
    draw = random.Random(3)
    found: dict[str, list[str]] = {}
    while len(found) < rows:
        words = [draw.choice([*MOODS, *REST, *REST]) for _ in range(draw.randrange(3, 16))]
        found[" ".join(words)] = words
    return list(found.values())


def mood(words: list[str]) -> float:
    return sum(MOODS.get(word, 0) for word in words) / 2


def of_text(words: list[str]) -> dict[str, Any]:
    return {"text": " ".join(words), "label": ["low", "even", "high"][int(np.sign(mood(words))) + 1]}


def of_numbers(words: list[str]) -> dict[str, Any]:
    return {"text": " ".join(words), "label": 100 + mood(words)}


def of_two_numbers(words: list[str]) -> dict[str, Any]:
    return {"text": " ".join(words), "mood": mood(words), "length": len(words)}


def of_sets(words: list[str]) -> dict[str, Any]:
    return {
        "text": " ".join(words),
        "label": ";".join(sorted({word for word in words if word in ("good", "bad", "dull")})),
    }


def of_tags(words: list[str]) -> dict[str, Any]:
    tags, before = [], "O"
    for word in words:
        kind = {1: "up", -1: "down"}.get(MOODS.get(word, 0), "")
        before = "O" if not kind else f"I-{kind}" if before[2:] == kind else f"B-{kind}"
        tags.append(before)
    return {"text": words, "label": tags}


def of_answers(words: list[str]) -> dict[str, Any]:
    """Answers of very different lengths."""
    answer = "yes" if mood(words) > 0 else "no"
    return {"text": " ".join(words), "completion": " ".join([answer, *words[:: 3 if len(words) % 2 else 9]])}


def of_turns(words: list[str]) -> dict[str, Any]:
    """Conversations of one to three turns of the assistant."""
    talk = []
    for word in words[: 1 + len(words) % 3]:
        talk += [{"role": "user", "content": f"{word} ?"}, {"role": "assistant", "content": f"{word} is {words[-1]}"}]
    return {"talk": [{"role": "system", "content": " ".join(words)}, *talk]}


def of_image(words: list[str]) -> dict[str, Any]:
    return {"picture": f"{'-'.join(words)}.png", "label": of_text(words)["label"]}


def paint(words: list[str], folder: Path) -> None:
    """Leave the picture of a row: its colour is its mood, the rest is noise."""
    from PIL import Image

    pixels = np.random.default_rng(len(words)).integers(0, 100, (20, 24, 3), dtype=np.uint8)
    pixels[..., int(np.sign(mood(words))) + 1] += 120
    Image.fromarray(pixels).save(folder / of_image(words)["picture"])


CASES: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]], dict[str, Any]]] = {
    "text-classification": ("text-classification", of_text, {}),
    "regression": ("regression", of_numbers, {}),
    "two numbers": ("regression", of_two_numbers, {"label_columns": ["mood", "length"]}),
    "multi-label": ("multi-label", of_sets, {}),
    "token-classification": ("token-classification", of_tags, {}),
    "images": ("image-classification", of_image, {"image": "picture"}),
    "sft": ("sft", of_answers, {"prompt": "{text} ?"}),
    "messages": ("sft", of_turns, {"messages": "talk"}),
    "causal-lm": ("causal-lm", of_text, {"max_length": 12}),
}
CLASSIFIERS = [case for case in CASES if case not in ("images", "sft", "messages", "causal-lm")]
AUGMENT = {"crop": 0.5, "flip": 0.5, "rand_ops": 1, "mixup": 0.2, "cutmix": 1.0}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def models(tiny_model: Path, language_model: Path, tiny_vit: Path) -> Callable[[str], Path]:
    """Return what gives the model of a case."""
    return lambda case: tiny_model if case in CLASSIFIERS else tiny_vit if case == "images" else language_model


@pytest.fixture(scope="module")
def lay(tmp_path_factory: pytest.TempPathFactory, models: Callable[[str], Path]) -> Callable[..., tuple[Path, Any]]:
    """Return a maker of job directories, up to the start of the workers; and the prepared splits."""
    home = tmp_path_factory.mktemp("tasks")

    def make(case: str, name: str, **groups: Any) -> tuple[Path, Any]:
        from skytune.launch import train

        task, row, data = CASES[case]
        file = home / f"{case}.jsonl"
        file.write_text("".join(json.dumps(row(words)) + "\n" for words in texts(ROWS + 24)))
        if case == "images":
            for words in texts(ROWS + 24):
                paint(words, home)
            groups = {"augment": AUGMENT, "loader": {"num_workers": int(name != "calm")}, **groups}
        values: dict[str, Any] = {
            "name": name,
            "task": {"name": task},
            "model": {"name": str(models(case)), "dropout": 0.0},
            "data": {"source": "files", "train": str(file), "test_fraction": 0.17, "validation_fraction": 0.17, **data},
            "compute": {"device": "cpu"},
            "launch": {"num_processes": 1, "threads": 1},
            "batch": {"global_size": 8},
            "epochs": 2,
            "log": {"every_steps": 1},
            "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.0},
            "tracker": {"names": []},
            "checkpoint": {"store": str(home / f"{case}-{name}-store"), "select": "last", "every_steps": 2},
            "callbacks": {"end": {"_target_": "worker_callbacks.End"}},
        }
        for key, value in groups.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        config = from_dict(RunConfig, values)
        found = prepare(config.data, config.model, 1, {}, None, find_task(config.task))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SKYTUNE_HOME", str(home / case / name))
            with pytest.raises(Laid):
                train(
                    config,
                    found.train,
                    {"validation": found.validation, "test": found.test},
                    found.tokenizer,
                    None,
                    _Stop(),
                )
        (folder,) = (path for path in (home / case / name / "runs").iterdir() if not path.name.startswith("."))
        return folder, found

    return make


@pytest.fixture(scope="module")
def calm(lives: Any, lay: Any) -> Callable[[str], tuple[Path, Any]]:
    """Return a maker of runs that nothing disturbs, one a case: one process, no accumulation."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(case: str) -> tuple[Path, Any]:
        if case not in made:
            job, found = lay(case, "calm")
            life = lives.live(job)
            assert life.code == 0, life.output
            made[case] = job, found
        return made[case]

    return make


def predictions(job: Path, split: str = "test") -> tuple[Any, Any, Any]:
    return read_predictions(job / "outputs" / "predictions" / f"{split}.arrow")


def flat(values: Any) -> np.ndarray:
    return np.concatenate([np.ravel(row) for row in values])


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_nothing_differs(lives: Any, lay: Any, calm: Any, case: str) -> None:
    job, _ = lay(case, "killed")
    assert lives.live(job, SKYTUNE_TEST_END="5 kill").code == -9
    life = lives.live(job)
    assert life.code == 0 and "resuming from step" in life.output, life.output
    whole, _ = calm(case)
    assert history(job) == history(whole)
    again, before = weights(job), weights(whole)
    assert all(np.array_equal(again[name], before[name]) for name in before)
    assert np.array_equal(flat(predictions(job)[2]), flat(predictions(whole)[2]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("processes", "micro"), [(2, 2), (1, 2)], ids=["2x2x2", "1x2x4"])
def test_same_weights_for_every_split_of_the_global_batch(
    lives: Any, lay: Any, calm: Any, case: str, processes: int, micro: int
) -> None:
    """Cases 12 and 47: a micro-batch counts by its rows, or by its tokens that count."""
    job, _ = lay(case, f"{processes}x{micro}", batch={"micro_size": micro}, launch={"num_processes": processes})
    life = lives.live(job, processes)
    assert life.code == 0, life.output
    whole, _ = calm(case)
    losses, others = ([record["loss"] for record in history(each).values()] for each in (whole, job))
    assert np.abs(np.array(losses) - np.array(others)).max() < 1e-6
    found, before = weights(job), weights(whole)
    assert max(float(np.abs(found[name] - before[name]).max()) for name in before) < 1e-6
    assert result(job)["world_size"] == processes


@pytest.mark.parametrize("case", CASES)
def test_the_weights_did_change(calm: Any, models: Callable[[str], Path], case: str) -> None:
    """Guards the tests above against a loop that trains nothing."""
    from safetensors.numpy import load_file

    found, start = weights(calm(case)[0]), load_file(models(case) / "model.safetensors")
    parts = ("attention.self.value.weight", "self_attn.v_proj.weight", "attention.attention.value.weight")
    name = next(name for name in start if "0." in name and name.endswith(parts))
    here = name if name in found else f"bert.{name}"
    assert np.abs(found[here] - start[name]).max() > 1e-6


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_plain_transformers_predicts_the_same_and_each_row_once(calm: Any, case: str) -> None:
    import torch
    import transformers

    job, found = calm(case)
    task = find_task(TaskConfig(name=CASES[case][0]))
    head = task.model(RunConfig(), found.labels, None)
    model = getattr(transformers, head.auto).from_pretrained(job / "outputs" / "model").eval()
    assert [model.config.id2label[n] for n in range(len(found.labels))] == found.labels
    rows, _, collected = predictions(job)
    assert rows.tolist() == list(range(len(found.test)))
    scale = getattr(model.config, "skytune_scale", None)
    for row, logits in zip(found.test, collected, strict=True):
        with torch.no_grad():
            output = model(input_ids=row["input_ids"][None], attention_mask=row["attention_mask"][None]).logits[0]
        if output.ndim == 2:
            output = output[row["labels"] != -100]
        plain = output.numpy()
        if scale:
            plain = plain * np.array(scale["std"]) + np.array(scale["mean"])
        assert np.allclose(np.ravel(plain), logits, atol=1e-4 if scale else 1e-5)


def test_plain_transformers_sees_the_same_in_an_image_and_each_row_once(calm: Any, tmp_path: Path) -> None:
    """By the processor that lies beside the exported model, out of the very files."""
    import torch
    import transformers
    from PIL import Image

    job, found = calm("images")
    folder = job / "outputs" / "model"
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    assert [model.config.id2label[n] for n in range(3)] == found.labels == ["even", "high", "low"]
    rows, _, collected = predictions(job)
    assert rows.tolist() == list(range(len(found.test)))
    files = job.parents[3].glob("*.png")
    contents = {file.read_bytes(): file for file in files}
    for row, logits in zip(found.test, collected, strict=True):
        with torch.no_grad(), Image.open(contents[bytes(row["image"])]) as image:
            plain = model(**processor(image.convert("RGB"), return_tensors="pt")).logits[0].numpy()
        assert np.allclose(plain, logits, atol=1e-5)


@pytest.mark.parametrize("case", ["sft", "messages"])
def test_plain_transformers_loss_is_ours_and_each_row_once(calm: Any, case: str) -> None:
    import transformers

    job, found = calm(case)
    model = transformers.AutoModelForCausalLM.from_pretrained(job / "outputs" / "model").eval()
    rows, _, collected = predictions(job)
    assert rows.tolist() == list(range(len(found.test)))
    for row, (loss, count) in zip(found.test, collected, strict=True):
        output = model(input_ids=row["input_ids"][None], labels=row["labels"][None])
        assert count == int((row["labels"][1:] != -100).sum()) > 0
        assert loss / count == pytest.approx(float(output.loss.detach()), abs=1e-5)


def test_texts_of_one_row_are_foretold_as_if_alone(calm: Any) -> None:
    """Case 48: what stands before a text in its row is not seen."""
    import torch
    import transformers

    job, found = calm("causal-lm")
    model = transformers.AutoModelForCausalLM.from_pretrained(job / "outputs" / "model").eval()
    _, _, collected = predictions(job)
    several = 0
    for row, (loss, count) in zip(found.test, collected, strict=True):
        starts = [*torch.nonzero(row["position_ids"] == 0).flatten().tolist(), len(row["input_ids"])]
        several += len(starts) > 2
        parts = [row["input_ids"][a:b][None] for a, b in pairwise(starts) if b - a > 1]
        losses = [float(model(input_ids=part, labels=part).loss.detach()) * (part.shape[1] - 1) for part in parts]
        assert count == sum(part.shape[1] - 1 for part in parts)
        assert loss == pytest.approx(sum(losses), abs=1e-4)
    assert several > 2


def test_answers_are_generated_on_every_number_of_processes(lives: Any, lay: Any) -> None:
    """The exported tokenizer reads its own chat template, and the answers are those of transformers."""
    import torch
    import transformers

    told = []
    for processes, strategy in ((1, "auto"), (2, "auto"), (2, "fsdp")):
        how: dict[str, Any] = {"eval": {"generate": True, "max_new_tokens": 5, "batch_size": 4}}
        how |= {"strategy": {"name": strategy}, "launch": {"num_processes": processes}}
        job, found = lay("sft", f"answers-{processes}-{strategy}", **how)
        life = lives.live(job, processes)
        assert life.code == 0, life.output
        told.append([row.tolist() for row in predictions(job)[2]])
    for others in told[1:]:
        assert [row[2:] for row in told[0]] == [row[2:] for row in others]
        assert np.allclose([row[:2] for row in told[0]], [row[:2] for row in others], atol=1e-4)
    folder = job / "outputs" / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    for row, (_, _, count, *answer) in zip(found.test, told[1], strict=True):
        place = int(torch.nonzero(row["labels"] != -100)[0])
        prompt = row["input_ids"][:place][None]
        text = words.decode(prompt[0]).removeprefix("<|user|>").split(" ?")[0].strip() + " ?"
        turns = [{"role": "user", "content": text}]
        assert words.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] == prompt[0].tolist()
        output = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)[0, place:].tolist()
        end = words.eos_token_id
        assert answer == (output[: output.index(end)] if end in output else output) and count == len(answer)


@pytest.mark.parametrize(
    "case", ["text-classification", "two numbers", "multi-label", "token-classification", "images"]
)
def test_an_evaluation_of_what_was_saved_gives_the_same(lives: Any, calm: Any, case: str) -> None:
    from forked_workers import Forked

    from skytune.launch import predict

    job, found = calm(case)
    values = {
        "pipeline": "evaluate",
        "checkpoint": {"path": str(job / "outputs" / "model")},
        "compute": {"device": "cpu"},
    }
    config = from_dict(RunConfig, {**values, "launch": {"num_processes": 1, "threads": 1}})
    done = predict(config, str(config.checkpoint.path), {"test": found.test}, found.tokenizer, Forked(lives))
    assert np.array_equal(flat(predictions(done.job.root)[2]), flat(predictions(job)[2]))
    assert done.result.get("settings") == result(job).get("settings")


def test_thresholds_are_chosen_on_validation_and_go_with_the_model(lives: Any, lay: Any) -> None:
    job, found = lay("multi-label", "tuned", eval={"threshold": "f1"}, epochs=1)
    life = lives.live(job, 2)
    assert life.code == 0, life.output
    values = json.loads((job / "outputs" / "model" / "config.json").read_text())
    chosen = values["skytune_thresholds"]
    assert len(chosen) == len(found.labels) and result(job)["settings"] == {"skytune_thresholds": chosen}
    task = find_task(TaskConfig(name="multi-label"))
    _, targets, collected = load_predictions(job / "outputs" / "predictions" / "validation.arrow")
    assert task.tune is not None
    assert task.tune(collected, targets, Scoring(names=found.labels)) == {"skytune_thresholds": chosen}


BAD: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], str]] = {
    "no number": ("regression", [{"text": "a b", "label": "x"}], {}, r"line 3: label 'x' is no finite number"),
    "infinite": ("regression", [{"text": "a b", "label": "inf"}], {}, r"line 3: label 'inf' is no finite number"),
    "no label": ("regression", [{"text": "a b", "label": None}], {}, r"line 3: has no label"),
    "one column": (
        "regression",
        [{"text": "a", "p": 1}],
        {"label_columns": ["p", "q"]},
        r"data.label_columns=q: no such",
    ),
    "another class": (
        "multi-label",
        [{"text": "a b", "label": "z"}],
        {"labels": ["p", "q"]},
        r"line 3: label 'z' is not",
    ),
    "fewer tags": (
        "token-classification",
        [{"text": ["a", "b"], "label": ["O"]}],
        {},
        r"line 3: there are 2 words and 1",
    ),
    "no words": ("token-classification", [{"text": [], "label": []}], {}, r"line 3: there are no words"),
    "inside first": (
        "token-classification",
        [{"text": ["a", "b"], "label": ["O", "I-p"]}],
        {},
        r"line 3: tag 2 is 'I-p' after 'O': an entity begins with 'B-p'; data.bad_rows=drop leaves such rows out",
    ),
    "no completion": (
        "sft",
        [{"prompt": "it", "completion": " "}],
        {},
        r"line 3: the completion is empty; data.bad_rows=drop",
    ),
    "no column": ("sft", [{"prompt": "it"}], {"columns": None}, r"data.completion=completion: no such column"),
    "long prompt": (
        "sft",
        [{"prompt": "it " * 9, "completion": "no"}, {"prompt": "is " * 9, "completion": "no"}],
        {"max_length": 8},
        r"line [34]: its prompt alone has 8 tokens or more, .*: data.max_length=",
    ),
    "no messages": ("sft", [{"prompt": "x"}], {"messages": "prompt"}, r"line 1: there is no list of messages"),
    "no role": (
        "sft",
        [{"talk": [{"role": "user", "content": "a"}, {"content": "b"}]}],
        {"messages": "talk", "columns": None},
        r"line 1: message 2 has no role and content of text",
    ),
    "nobody answers": (
        "sft",
        [{"talk": [{"role": "user", "content": "a"}]}],
        {"messages": "talk", "columns": None},
        r"line 1: no message is the assistant's, so there is nothing to learn",
    ),
}
GOOD: dict[str, list[dict[str, Any]]] = {
    "sft": [{"prompt": "good film ?", "completion": "yes"}, {"prompt": "bad film ?", "completion": "no"}],
    "regression": [{"text": "good film", "label": 1.5}, {"text": "bad film", "label": -1}],
    "multi-label": [{"text": "good film", "label": "p;q"}, {"text": "bad film", "label": ""}],
    "token-classification": [
        {"text": ["good", "film"], "label": ["B-p", "O"]},
        {"text": ["bad", "film"], "label": ["B-q", "I-q"]},
    ],
}


@pytest.mark.parametrize("what", BAD)
def test_bad_rows_are_named_in_one_line(what: str, tiny_model: Path, language_model: Path, tmp_path: Path) -> None:
    task, rows, data, message = BAD[what]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*([] if "columns" in str(data) else GOOD[task]), *rows]))
    own = {key: value for key, value in data.items() if key != "columns"}
    config = from_dict(DataConfig, {"source": "files", "train": str(file), **own})
    model = language_model if task == "sft" else tiny_model
    with pytest.raises(UserError, match=message) as refused:
        prepare(config, ModelConfig(name=str(model)), 1, {}, None, find_task(TaskConfig(name=task)))
    assert "\n" not in str(refused.value)
