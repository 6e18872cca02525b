"""Two machines with nothing in common but a cable and a share: network namespaces, one agent of torchrun in each, and
no file of node 0's job on the other side. Kubernetes' variables go with a bucket, srun's with a folder.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_apart import BUCKET, ROOT, S3, Cable, lay, missing
from safetensors.numpy import load_file

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(reason := missing()), reason=reason or "here"),
]

GATE = '''
"""A run that waits from one step on until a file is there."""
import time
from pathlib import Path


class Gate:
    def __init__(self, folder, step):
        self.folder, self.step = Path(folder), step

    def on_step_end(self, run):
        if run.world.main and run.step >= self.step:
            (self.folder / "waiting").touch()
            while not (self.folder / "open").exists():
                time.sleep(0.05)
'''
KUBERNETES = {"NNODES": "2", "MASTER_ADDR": Cable.addresses[0], "JOB_COMPLETION_INDEX": "{rank}"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": ",".join(Cable.addresses),
    "SLURM_NODEID": "{rank}",
}
SILENCE = 6.0


@dataclass
class Story:
    """What happened."""

    base: Path
    jobs: dict[str, Path] = field(default_factory=dict)
    cut: list[tuple[int, str]] = field(default_factory=list)
    """Code and words of both sides, after the cable was cut."""
    took: float = 0.0
    steps: list[str] = field(default_factory=list)
    """Checkpoints after that."""
    told: list[tuple[int, str]] = field(default_factory=list)
    """The same of a run of which machine B was told to end."""
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

    from skytune.config import RunConfig, from_dict, to_dict

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
                "checkpoint": {
                    "store": str(base / "a" / "store"),  # which B does not see
                    "every_steps": 2,
                    "async_save": False,
                    "keep": 9,
                    "select": "best",
                    "metric": "loss",
                },
                "launch": {"threads": 1, "num_processes": 4, **launch},
            },
        )

    data = {
        "train_split": _split(tiny_model, sentences(90, 0)),
        "evaluation": {"validation": _split(tiny_model, sentences(24, 1))},
        "tokenizer": AutoTokenizer.from_pretrained(tiny_model),
    }
    hold = {"gate": {"_target_": "gate_at_a_step.Gate", "folder": str(gate), "step": 6}}
    share = base / "share"
    story, cable, sides = Story(base), Cable(), []
    server = subprocess.Popen(
        cable.inside(0, [sys.executable, "-c", BUCKET]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **S3},
    )

    def both(name: str, url: str, engine: dict[str, str]) -> tuple[Side, Side]:
        launch = {"share": url, "timeouts": {"kill": 3.0, "start": 600.0, "heartbeat": SILENCE}}
        found = config(launch, hold)
        story.jobs[name] = job = lay(base / "a" if "://" in url else share, config=found, **data)
        file = base / f"{name}.json"
        file.write_text(json.dumps(to_dict(found)))
        for rank, place in enumerate((job, file)):
            words = [sys.executable, str(ROOT / "tests" / "helpers" / "machines_apart.py"), str(place)]
            env = {key: value.format(rank=rank) for key, value in engine.items()}
            inside = cable.inside(rank, words, hidden=base / "a" if rank else None)
            modules = f"{ROOT / 'src'}{os.pathsep}{base / 'modules'}"
            side = Side(inside, base / f"{name}-{rank}.log", base / "ab"[rank], PYTHONPATH=modules, **S3, **env)
            sides.append(side)
        return sides[-2], sides[-1]

    try:
        assert server.stdout is not None and server.stdout.readline() == b"open\n"
        first, second = both("cut", "s3://share/runs", KUBERNETES)
        _wait((gate / "waiting").exists, first, 600)
        cable.cut()
        (gate / "open").touch()
        start = time.monotonic()
        story.cut = [first.end(600), second.end(600)]
        story.took = time.monotonic() - start
        story.steps = sorted(path.parent.name for path in (base / "a" / "store").glob("*/step-*/manifest.json"))
        cable.mend()
        for file in gate.iterdir():
            file.unlink()
        first, second = both("told", "s3://share/runs", KUBERNETES)
        _wait((gate / "waiting").exists, first, 600)
        second.process.terminate()
        _wait((story.jobs["told"] / "preempt").exists, first, 600)
        (gate / "open").touch()
        story.told = [first.end(600), second.end(600)]
        first, second = both("resumed", str(share), SLURM)
        story.resumed = [first.end(600), second.end(600)]
        story.reference = lay(base / "alone", config=config({}, {}), **data)
        alone = [sys.executable, str(ROOT / "tests" / "helpers" / "machines_apart.py"), str(story.reference)]
        code, output = Side(alone, base / "alone.log", base / "alone").end(600)
        assert code == 0, output
        yield story
    finally:
        sys.path.remove(str(base / "modules"))
        for side in sides:
            if side.process.poll() is None:
                side.process.kill()
        server.kill()
        cable.remove()


def test_a_cut_cable_ends_both_sides_with_a_line(story: Story) -> None:
    (code, output), (other_code, other_output) = story.cut
    assert code == 1, output
    assert "error: node 1 (" in output
    assert f"has not been heard of for {SILENCE:g} s" in output
    assert "the same command goes on" in output
    assert "Traceback" not in output
    assert other_code == 1, other_output
    assert other_output.splitlines()[-1].startswith("error: launch.share=s3://share/runs: cannot be used any more: ")
    assert story.took < 500


def test_the_checkpoints_are_whole(story: Story) -> None:
    from skytune.checkpoint.store import Store

    assert "step-00000004" in story.steps
    store = Store.open(str(story.base / "a" / "store"), story.jobs["cut"].name)
    assert store.run_key == story.jobs["resumed"].name


def test_a_machine_that_is_told_to_end_ends_both_after_one_step(story: Story) -> None:
    (code, output), (other_code, other_output) = story.told
    assert (code, other_code) == (75, 75), output + other_output
    assert "preempted: stopped after step" in output and "which is saved" in output


def test_the_run_goes_on_and_ends_with_the_weights_of_one_machine(story: Story) -> None:
    (code, output), (other_code, other_output) = story.resumed
    assert code == 0, output
    assert other_code == 0, other_output
    assert re.search(r"resuming from step [6789] ", output)
    assert "4 x cpu" in output
    ours = load_file(story.jobs["resumed"] / "outputs" / "model" / "model.safetensors")
    alone = load_file(story.reference / "outputs" / "model" / "model.safetensors")
    assert ours.keys() == alone.keys()
    assert max(float(np.abs(ours[name] - alone[name]).max()) for name in alone) <= 1e-6
    curves = [_losses(job) for job in (story.jobs["resumed"], story.reference)]
    assert curves[0].keys() <= curves[1].keys() and len(curves[0]) >= 1
    assert all(abs(loss - curves[1][step]) <= 1e-6 for step, loss in curves[0].items())


def test_inputs_and_logs_go_through_the_bucket(story: Story) -> None:
    key, output = story.jobs["told"].name, story.told[1][1]
    assert f"of the run {key} ({story.base / 'b' / 'joined' / key})" in output
    assert not list((story.base / "b" / "joined").glob("*")), "the copy goes again"
    for job in (story.jobs["told"], story.jobs["resumed"]):
        logs = {path.name for path in (job / "outputs" / "logs").iterdir()}
        assert {"rank-0.log", "rank-1.log", "rank-2.log", "rank-3.log", "output-node-1.log"} <= logs
        assert (job / "outputs" / "logs" / "rank-3.log").read_text()


def _losses(job: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (job / "outputs" / "history.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line and "step" in line}


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
