"""`examples/` and the task of the README, each run by the command that is written in it."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = "PYTHONPATH=examples python src/run.py "

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(new_checkout: Callable[..., Any]) -> Any:
    """A checkout with the examples, which commands run in."""
    checkout = new_checkout(warm=True)
    shutil.copytree(ROOT / "examples", checkout.source / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    checkout.env |= {"PYTHONPATH": str(checkout.source / "examples"), "PYTHON": sys.executable}
    return checkout


def finished(place: Any, words: str) -> tuple[dict[str, Any], Path]:
    """Run a command; return its job and where its results lie."""
    before = set((place.home / "skytune" / "runs").glob("*/job.json"))
    done = place.run(*shlex.split(words), cwd=place.source)
    assert done.code == 0, done.out + done.err
    (job,) = set((place.home / "skytune" / "runs").glob("*/job.json")) - before
    return json.loads(job.read_text()), job.parent / "outputs"


def own_model(job: dict[str, Any], outputs: Path, place: Any) -> None:
    config = job["config"]
    assert config["model"]["_target_"] == "own_model.Words"
    assert config["optimizer"]["_target_"] == "own_model.Lion"
    assert config["schedule"]["_target_"] == "own_model.hold"
    assert (outputs / "model" / "model.safetensors").is_file()


def own_data(job: dict[str, Any], outputs: Path, place: Any) -> None:
    assert job["labels"] == ["even", "odd"]
    assert job["sizes"]["test"] == 40  # a tenth of 400


def own_metric_and_callback(job: dict[str, Any], outputs: Path, place: Any) -> None:
    scores = json.loads((outputs / "model" / "test_results.json").read_text())
    assert 0 <= scores["metrics"]["fbeta"] <= 1
    diary = json.loads((place.source / "diary.json").read_text())
    assert [entry["step"] for entry in diary] == [2]
    assert 0 <= diary[0]["fbeta"] <= 1


@pytest.mark.parametrize("check", [own_model, own_data, own_metric_and_callback])
def test_an_example_does_what_its_first_lines_say(check: Callable[..., None], place: Any) -> None:
    text = (ROOT / "examples" / f"{check.__name__}.py").read_text(encoding="utf-8")
    (command,) = re.findall(rf"^{re.escape(START)}(.*)$", text, flags=re.MULTILINE)
    check(*finished(place, command), place)


def test_the_task_of_the_readme(place: Any) -> None:
    part = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own task")[2]
    (place.source / "src" / "my_task.py").write_text(part.partition("```python\n")[2].partition("```")[0])
    command = re.findall(r"^    python src/run.py (.*)$", part, flags=re.MULTILINE)[0]
    job, _ = finished(place, f"{command} debug=smoke")
    assert job["labels"] == ["even", "odd"]


def shell(place: Any, *words: str, **more: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["sh", str(place.source / "examples" / words[0]), *words[1:]],
        env={**place.env, **more},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_the_study_tells_its_cells(place: Any) -> None:
    started = shell(place, "study.sh", "study.dry_run=true")
    output = started.communicate(timeout=120)[0]
    assert started.returncode == 0, output
    assert "rows-and-batch: 3 cells, 3 to run" in output


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_study_trains_its_cells(place: Any) -> None:
    started = shell(place, "study.sh")
    output = started.communicate(timeout=580)[0]
    assert started.returncode == 0, output
    (table,) = (place.home / "skytune" / "benchmarks").glob("rows-and-batch/results.csv")
    assert len(table.read_text().splitlines()) == 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_machines(place: Any) -> None:
    """Both of them on this one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["127.0.0.1", str(place.home / "share"), "debug=smoke", "name=two", f"launch.master_port={port}"]
    nodes = [shell(place, "two_machines.sh", str(rank), *words) for rank in (1, 0)]
    try:
        lines = [node.communicate(timeout=250)[0] for node in reversed(nodes)]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(lines)
    (result,) = (place.home / "share" / "runs").glob("two-*/outputs/result.json")
    assert json.loads(result.read_text())["world_size"] == 2
