"""Files without labels to one file with predictions, by real worker processes, killed at any time."""

import csv
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import ConfigError, RunConfig, UserError, from_dict
from skytune.launch.local import LocalLauncher
from skytune.launch.predict_files import check_files, predict_files
from skytune.launch.warm import WarmWorkers

ROWS = 300
NEW = ["prediction", "probability", "probability_negative", "probability_positive"]

COMMAND = """
import json, sys
from skytune.config import RunConfig, from_dict
from skytune.launch.predict_files import predict_files
values = json.loads(sys.argv[1])
predict_files(from_dict(RunConfig, values), values["checkpoint"]["path"])
"""


@pytest.fixture(scope="module", autouse=True)
def _forked_workers() -> Iterator[None]:
    """As in a search, workers are forked from a process that has imported the libraries: those take most of a short
    job's time."""
    workers = WarmWorkers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skytune.launch.predict_files.LocalLauncher", partial(LocalLauncher, warm=workers))
        yield
    workers.close()


@pytest.fixture
def texts(tmp_path: Path, sentences: Callable[..., list[tuple[str, int]]]) -> Path:
    """A csv file with columns that must stay as they are."""
    path = tmp_path / "new.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "note"])
        for number, (text, _) in enumerate(sentences(ROWS)):
            writer.writerow([f"{number:05d}", text, f'a "note",\n{number}' if number % 7 == 0 else "1.50"])
    return path


def values(model: Path, source: Path | str, target: Path | str, **groups: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "pipeline": "predict",
        "model": {"name": str(model)},
        "checkpoint": {"path": str(model)},
        "compute": {"device": "cpu"},
        "launch": {"num_processes": 1, "threads": 1},
        "predict": {"input": str(source), "output": str(target), "shard_rows": 50},
    }
    for key, value in groups.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return config


def run(*args: Any, **groups: Any) -> dict[str, Any]:
    config = from_dict(RunConfig, values(*args, **groups))
    return predict_files(config, str(config.checkpoint.path))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_logits_are_those_of_an_evaluation_to_the_bit_and_all_else_stays(
    tiny_classifier: Path, texts: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet
    from transformers import AutoTokenizer

    from skytune.config import DataConfig, ModelConfig
    from skytune.data import prepare
    from skytune.launch import predict, read_predictions

    target = tmp_path / "out.parquet"
    done = run(tiny_classifier, texts, target, predict={"logits": True, "shard_rows": 1000})
    table = pyarrow.parquet.read_table(target)
    assert table.column_names == ["id", "text", "note", *NEW, "logits"]
    before = rows(texts)
    assert table.select(["id", "text", "note"]).to_pylist() == before
    labelled = tmp_path / "labelled.csv"
    with labelled.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([row["text"], "positive"] for row in before)])
    data = DataConfig(source="files", train=str(labelled), test=str(labelled), drop_leaks=False)
    split = prepare(data, ModelConfig(name=str(tiny_classifier)), 1, {}, ["negative", "positive"]).test
    config = from_dict(
        RunConfig, values(tiny_classifier, texts, target, pipeline="evaluate", predict={"input": None, "output": None})
    )
    scored = predict(config, str(tiny_classifier), {"test": split}, AutoTokenizer.from_pretrained(tiny_classifier))
    wanted = read_predictions(scored.job, ["test"])["test"].with_format("numpy")[:]
    assert (wanted["row"] == np.arange(ROWS)).all()
    logits = np.array(table["logits"].to_pylist(), np.float32)
    assert (logits == np.asarray(wanted["logits"], np.float32)).all()
    classes = np.array(["negative", "positive"])[logits.argmax(axis=1)]
    assert table["prediction"].to_pylist() == classes.tolist()
    assert done["rows"] == ROWS and sum(done["counts"].values()) == ROWS
    exact = np.exp(logits.max(axis=1)) / np.exp(logits).sum(axis=1)
    assert np.allclose(table["probability"].to_pylist(), exact, atol=1e-6)


def test_two_processes_write_the_file_of_one(tiny_classifier: Path, texts: Path, tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        target = tmp_path / f"out-{processes}.csv"
        run(tiny_classifier, texts, target, name=f"p{processes}", launch={"num_processes": processes})
        found.append(target.read_bytes())
    assert found[0] == found[1]
    assert [row["id"] for row in rows(target)] == [f"{number:05d}" for number in range(ROWS)]


def test_a_row_without_a_text_is_named_and_the_same_command_goes_on_without_it(
    tiny_classifier: Path, texts: Path, tmp_path: Path
) -> None:
    lines = rows(texts)
    lines[260]["text"] = "  "
    with texts.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    target = tmp_path / "out.csv"
    with pytest.raises(UserError, match=r"new.csv, line 300: the text is only white space; data.bad_rows=drop"):
        run(tiny_classifier, texts, target)
    assert not target.exists()
    (shards,) = (tmp_path / "skytune-home" / "runs").glob("*/shards")
    before = {path.name: path.stat().st_mtime_ns for path in shards.glob("*.csv")}
    assert len(before) == 5
    done = run(tiny_classifier, texts, target, data={"bad_rows": "drop"})
    written = rows(target)
    assert done["without_text"] == 1 and [row["id"] for row in written] == [row["id"] for row in lines]
    assert written[260]["prediction"] == written[260]["probability"] == "" and written[261]["prediction"]
    assert not shards.exists()


def kill_at(words: dict[str, Any], moment: Callable[[], bool]) -> None:
    """Run the command until `moment`, then kill it and its workers as a machine that loses power would."""
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, json.dumps(words)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while child.poll() is None and not moment():
        time.sleep(0.01)
    import psutil

    family = (
        [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)] if child.poll() is None else []
    )
    for process in family:
        process.kill()
    child.wait()
    psutil.wait_procs(family[1:])


def test_whatever_was_killed_the_same_command_ends_with_the_same_file(
    tiny_classifier: Path, texts: Path, tmp_path: Path
) -> None:
    whole, target = tmp_path / "whole.csv", tmp_path / "out.csv"
    run(tiny_classifier, texts, whole, name="whole")
    words = values(tiny_classifier, texts, target, name="killed")
    shards = tmp_path / "skytune-home" / "runs"
    kill_at(words, lambda: len(list(shards.glob("killed-*/shards/*.json"))) >= 2)
    assert not target.exists()
    done = run(tiny_classifier, texts, target, name="killed")
    assert target.read_bytes() == whole.read_bytes()
    assert not done["reused"] and not list(tmp_path.glob(".out*"))
    assert run(tiny_classifier, texts, target, name="killed")["reused"]
    target.write_bytes(b"damaged")
    assert not run(tiny_classifier, texts, target, name="killed")["reused"]
    assert target.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_kills_at_random_moments_leave_one_identical_file(tiny_classifier: Path, texts: Path, tmp_path: Path) -> None:
    """Each a moment after another shard was written, so that work is lost and taken up again each time."""
    whole, target = tmp_path / "whole.csv", tmp_path / "out.csv"
    run(tiny_classifier, texts, whole, name="whole", predict={"shard_rows": 5})
    draw = random.Random(7)
    words = values(tiny_classifier, texts, target, name="killed", predict={"shard_rows": 5})
    home = tmp_path / "skytune-home" / "runs"
    for _ in range(5):
        before, later = len(list(home.glob("killed-*/shards/*.json"))), draw.expovariate(10)
        until: list[float] = []

        def moment(before: int = before, later: float = later, until: list[float] = until) -> bool:
            if not until and len(list(home.glob("killed-*/shards/*.json"))) > before:
                until.append(time.monotonic() + later)
            return bool(until) and time.monotonic() > until[0]

        kill_at(words, moment)
        assert not target.exists() or target.read_bytes() == whole.read_bytes()
    run(tiny_classifier, texts, target, name="killed", predict={"shard_rows": 5})
    assert target.read_bytes() == whole.read_bytes()
    assert not list(home.glob("killed-*/shards"))


def test_files_of_a_bucket_are_read_and_written(
    tiny_classifier: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs
    from s3_server import S3

    server = S3()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3 = s3fs.S3FileSystem()
    s3.mkdir("bucket")
    s3.put(str(texts), "bucket/in/a.csv")
    s3.put(str(texts), "bucket/in/b.csv")
    done = run(tiny_classifier, "s3://bucket/in/*.csv", "s3://bucket/out/all.jsonl")
    lines = s3.cat("bucket/out/all.jsonl").decode().splitlines()
    assert done["rows"] == len(lines) == 2 * ROWS
    assert [json.loads(line)["id"] for line in lines[:ROWS]] == [json.loads(line)["id"] for line in lines[ROWS:]]
    assert run(tiny_classifier, "s3://bucket/in/*.csv", "s3://bucket/out/all.jsonl")["reused"]


def test_what_cannot_go_well_is_told_before_anything_runs(tiny_classifier: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline=predict needs checkpoint=PATH predict.input=FILES"):
        from_dict(RunConfig, {"pipeline": "predict", "checkpoint": {"path": "x"}})
    with pytest.raises(ConfigError, match=r"must end with .csv, .tsv, .jsonl, .parquet"):
        from_dict(RunConfig, values(tiny_classifier, texts, "out.txt"))
    with pytest.raises(ConfigError, match="only with pipeline=predict"):
        from_dict(RunConfig, {"predict": {"input": "a.csv"}})
    for source, target, message in (
        (texts, texts, "is one of the files"),
        (tmp_path / "nothing.csv", tmp_path / "o.csv", "no such file"),
        (tmp_path / "*.tsv", tmp_path / "o.csv", "no file matches"),
        (texts, texts / "o.csv", "o.csv: cannot be written"),
    ):
        with pytest.raises(UserError, match=message):
            check_files(from_dict(RunConfig, values(tiny_classifier, source, target)).predict)


def test_a_column_that_has_the_name_of_a_new_one_is_told_with_the_way_out(
    tiny_classifier: Path, texts: Path, tmp_path: Path
) -> None:
    first = texts.read_text().replace("id,text,note", "prediction,text,note", 1)
    texts.write_text(first)
    with pytest.raises(UserError, match=r"column 'prediction': predict.prefix=model_ "):
        run(tiny_classifier, texts, tmp_path / "out.csv")
    run(tiny_classifier, texts, tmp_path / "out.csv", predict={"prefix": "model_"})
    named = [f"model_{name}" for name in NEW]
    assert list(rows(tmp_path / "out.csv")[0]) == ["prediction", "text", "note", *named]


@pytest.mark.slow
def test_a_million_rows_take_less_than_a_gigabyte_of_memory(tiny_classifier: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "million.csv", tmp_path / "out.csv"
    with source.open("w") as file:
        file.write("id,text\n")
        file.writelines(f"{number},the film was {'good' if number % 3 else 'dull'}\n" for number in range(1_000_000))
    words = values(tiny_classifier, source, target, predict={"shard_rows": 10_000}, eval={"batch_size": 512})
    # Not `ru_maxrss` of the process itself: it begins with what the process that started it held.
    most = (
        "\nimport resource, re\n"
        "own = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    command = COMMAND.rstrip() + most
    done = subprocess.run(
        [sys.executable, "-c", command, json.dumps(words)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) * 1024 < 1e9
    with target.open() as file:
        next(file)
        for number, line in enumerate(file):
            assert line.startswith(f"{number},")
    assert number == 999_999


def test_images_of_a_table_get_classes_and_one_that_is_missing_none(tiny_vit: Path, tmp_path: Path) -> None:
    from pictures import class_folder
    from PIL import Image
    from transformers import ViTForImageClassification, ViTImageProcessorPil

    class_folder(tmp_path / "new", ("a", "b"), 4)
    files = [f"{name}/{number}.png" for name in "ab" for number in range(4)]
    with (tmp_path / "new" / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "path"], *enumerate(files[:3]), [9, "none.png"], *enumerate(files[3:], 3)])
    own = {"data": {"image": "path", "bad_rows": "drop"}, "predict": {"shard_rows": 5}}
    done = run(tiny_vit, tmp_path / "new" / "list.csv", tmp_path / "out.csv", **own)
    found = rows(tmp_path / "out.csv")
    assert done["without_text"] == 1 and [row["path"] for row in found] == [*files[:3], "none.png", *files[3:]]
    assert found[3]["id"] == "9" and found[3]["prediction"] == ""
    model, processor = (made.from_pretrained(tiny_vit) for made in (ViTForImageClassification, ViTImageProcessorPil))
    for row in found[:3] + found[4:]:
        with Image.open(tmp_path / "new" / row["path"]) as image:
            plain = model(**processor(image, return_tensors="pt")).logits[0].softmax(0)
        assert row["prediction"] == str(int(plain.argmax()))
        assert float(row["probability"]) == pytest.approx(float(plain.max().detach()), abs=1e-5)
