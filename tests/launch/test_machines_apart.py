"""Two machines with nothing in common but a cable: network namespaces, one agent of torchrun in each, and no file of
node 0's job on the other side."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).parent))
from apart import ROOT, Cable, lay, missing

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(reason := missing()), reason=reason or "here"),
]

GATE = '''
"""A run that waits at one step until a file is there."""
import time
from pathlib import Path


class Gate:
    def __init__(self, folder, step):
        self.folder, self.step = Path(folder), step

    def on_step_end(self, run):
        if run.world.main and run.step == self.step:
            (self.folder / "waiting").touch()
            while not (self.folder / "open").exists():
                time.sleep(0.05)
'''
SILENCE = 6.0


@dataclass
class Story:
    """What happened."""

    job: Path
    other: Path
    """The home of the other machine."""
    cut: list[tuple[int, str]] = field(default_factory=list)
    """Code and words of both sides, after the cable was cut."""
    took: float = 0.0
    steps: list[str] = field(default_factory=list)
    """Checkpoints after that."""
    resumed: list[tuple[int, str]] = field(default_factory=list)
    reference: Path = Path()


class Side:
    """One machine's process."""

    def __init__(self, words: list[str], log: Path, home: Path, **env: str) -> None:
        self.log = log
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SKYTUNE_HOME": str(home), **env}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                words, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def end(self, within: float) -> tuple[int, str]:
        return self.process.wait(within), self.log.read_text()


@pytest.fixture(scope="module")
def story(tiny_model: Path, sentences: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    from transformers import AutoTokenizer

    from skytune.config import RunConfig, from_dict

    base = tmp_path_factory.mktemp("apart")
    (base / "modules").mkdir()
    (base / "modules" / "gate_at_a_step.py").write_text(GATE)
    sys.path.append(str(base / "modules"))
    gate = base / "gate"
    gate.mkdir()

    def config(launch: dict[str, Any], callbacks: dict[str, Any]) -> Any:
        return from_dict(
            RunConfig,
            {
                "name": "apart",
                "model": {"name": str(tiny_model), "dropout": 0.0},
                "compute": {"device": "cpu"},
                "max_steps": 10,
                "batch": {"global_size": 8},
                "optimizer": {"lr": 1e-2},
                "tracker": {"names": []},
                "eval": {"every_steps": 2},
                "log": {"every_steps": 1},
                "callbacks": callbacks,
                "checkpoint": {"every_steps": 2, "asynchronous": False, "keep": 9, "select": "best", "metric": "loss"},
                "launch": {"threads": 1, "num_processes": 4, "grace_seconds": 3.0, **launch},
            },
        )

    data = {
        "train_split": _split(tiny_model, sentences(90, 0)),
        "evaluation": {"validation": _split(tiny_model, sentences(24, 1))},
        "tokenizer": AutoTokenizer.from_pretrained(tiny_model),
    }
    hold = {"gate": {"_target_": "gate_at_a_step.Gate", "folder": str(gate), "step": 6}}
    apart = {
        "nodes": 2,
        "master_addr": Cable.addresses[0],
        "master_port": 29511,
        "nodes_timeout_seconds": 100.0,
        "silence_seconds": SILENCE,
    }
    job = lay(base / "a", config=config(apart, hold), **data)
    story, cable, sides = Story(job, base / "b"), Cable(), []

    def both(name: str) -> tuple[Side, Side]:
        token = {"SKYTUNE_JOIN_TOKEN": "between us"}
        python = [sys.executable, str(ROOT / "tests" / "launch" / "apart.py"), str(job)]
        join = [sys.executable, "-m", "skytune.training", "join", f"{Cable.addresses[0]}:29511"]
        first = Side(cable.inside(0, python), base / f"{name}-a.log", base / "a", **token)
        second = Side(cable.inside(1, join, hidden=base / "a"), base / f"{name}-b.log", base / "b", **token)
        sides.extend([first, second])
        return first, second

    try:
        first, second = both("cut")
        _wait(lambda: (gate / "waiting").exists(), first, 150)
        cable.cut()
        (gate / "open").touch()
        start = time.monotonic()
        story.cut = [first.end(90), second.end(90)]
        story.took = time.monotonic() - start
        story.steps = sorted(path.parent.name for path in (job / "checkpoints").glob("*/step-*/manifest.json"))
        cable.mend()
        first, second = both("resumed")
        story.resumed = [first.end(200), second.end(60)]
        story.reference = lay(base / "alone", config=config({}, {}), **data)
        alone = [sys.executable, str(ROOT / "tests" / "launch" / "apart.py"), str(story.reference)]
        code, said = Side(alone, base / "alone.log", base / "alone").end(200)
        assert code == 0, said
        yield story
    finally:
        sys.path.remove(str(base / "modules"))
        for side in sides:
            if side.process.poll() is None:
                side.process.kill()
        cable.remove()


def test_a_cut_cable_ends_both_sides_with_a_line(story: Story) -> None:
    (code, said), (other_code, other_said) = story.cut
    assert code == 1, said
    assert "error: node 1 (" in said
    assert f"has not been heard of for {SILENCE:g} s" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert other_code == 1, other_said
    assert other_said.splitlines()[-1].startswith("error: node 0 (10.77.0.1:29511) has not been heard of")
    assert story.took < 60


def test_the_checkpoints_are_whole(story: Story) -> None:
    from skytune.training.checkpoint.store import Store

    assert "step-00000004" in story.steps
    store = Store.open(str(story.job / "checkpoints"), next(iter((story.job / "checkpoints").iterdir())).name)
    assert store.run_key == story.job.name


def test_the_run_goes_on_and_ends_with_the_weights_of_one_machine(story: Story) -> None:
    (code, said), (other_code, other_said) = story.resumed
    assert code == 0, said
    assert other_code == 0, other_said
    assert "resuming from step 4 " in said or "resuming from step 6 " in said
    assert "4 x cpu" in said
    ours = load_file(story.job / "outputs" / "model" / "model.safetensors")
    alone = load_file(story.reference / "outputs" / "model" / "model.safetensors")
    assert ours.keys() == alone.keys()
    assert max(float(np.abs(ours[name] - alone[name]).max()) for name in alone) <= 1e-6


def test_inputs_were_copied_and_logs_come_back(story: Story) -> None:
    said = story.resumed[1][1]
    assert f"its inputs were copied to {story.other / 'joined' / story.job.name}" in said
    assert not list((story.other / "joined").glob("[!.]*")), "the copy goes again"
    logs = {path.name for path in (story.job / "outputs" / "logs").iterdir()}
    assert {"rank-0.log", "rank-1.log", "rank-2.log", "rank-3.log", "output-node-1.log"} <= logs
    assert (story.job / "outputs" / "logs" / "rank-3.log").read_text()


def _wait(true: Any, side: Side, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert side.process.poll() is None, side.log.read_text()
        assert time.monotonic() < until, side.log.read_text()
        time.sleep(0.1)


def _split(model: Path, rows: list[tuple[str, int]]) -> Any:
    from datasets import ClassLabel, Dataset, Features, List, Value
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(model)([text for text, _ in rows], truncation=True)
    features = Features(
        input_ids=List(Value("int32")),
        attention_mask=List(Value("int8")),
        labels=ClassLabel(names=["negative", "positive"]),
    )
    columns = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    return Dataset.from_dict({**columns, "labels": [label for _, label in rows]}, features=features)
