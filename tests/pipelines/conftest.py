"""Whole runs of `src/run.py` in processes of their own, against a ZenML store of their own."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

INSPECT = """
import json, sys
from zenml.client import Client
run = Client().list_pipeline_runs(sort_by="desc:created", size=1, hydrate=True).items[0]
steps = {}
for name, step in run.steps.items():
    outputs = {k: {"uri": v[0].uri, "type": v[0].data_type.attribute, "materializer": v[0].materializer.import_path}
               for k, v in step.outputs.items()}
    steps[name] = {"status": step.status.value, "id": str(step.id), "outputs": outputs, "source": step.config.name,
                   "source": step.spec.source.import_path, "upstream": sorted(step.spec.upstream_steps)}
print(json.dumps({"name": run.pipeline.name, "status": run.status.value, "steps": steps}))
"""


@dataclass
class RunSummary:
    """A finished command."""

    code: int
    out: str
    err: str


class Checkout:
    """A source tree, a home and a ZenML store in which commands run."""

    def __init__(self, source: Path, home: Path) -> None:
        self.source, self.home = source, home
        self.warm = False
        """Whether commands are forked from a process that has imported the libraries (see `warm`)."""
        self.server: subprocess.Popen[str] | None = None
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("ZENML_", "SKYTUNE_"))}
        self.env |= {
            "HOME": str(home),
            "SKYTUNE_HOME": str(home / "skytune"),
            "HF_HUB_OFFLINE": "1",
            "XDG_CONFIG_HOME": "",
        }
        self.env["COLUMNS"] = "100"  # the summary is as wide as the terminal, whichever one the tests run in
        # Nothing may come from another checkout that is installed in this environment.
        self.env["ZENML_CONFIG_PATH"] = str(home / "zenml")

    def run(self, *words: str, cwd: Path | None = None, timeout: float = 900, **env: str) -> RunSummary:
        """Run `src/run.py` with these words."""
        if self.warm and not env:
            return self._run_warm(words, cwd or self.home, timeout)
        return self.python(str(self.source / "src" / "run.py"), *words, cwd=cwd, timeout=timeout, **env)

    def _run_warm(self, words: tuple[str, ...], cwd: Path, timeout: float) -> RunSummary:
        if self.server is None:
            command = [sys.executable, str(Path(__file__).with_name("warm.py")), str(self.source)]
            self.server = subprocess.Popen(
                command, cwd=self.home, env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert self.server.stdout is not None and self.server.stdout.readline() == "ready\n"
        assert self.server.stdin is not None and self.server.stdout is not None
        files = [self.home / f"warm.{end}" for end in ("out", "err")]
        order = {"words": words, "cwd": str(cwd), "env": self.env, "out": str(files[0]), "err": str(files[1])}
        print(json.dumps(order), file=self.server.stdin, flush=True)
        process = int(self.server.stdout.readline())
        timer = threading.Timer(timeout, os.killpg, (process, signal.SIGKILL))
        timer.start()
        code = int(self.server.stdout.readline())
        timer.cancel()
        return RunSummary(code, *(file.read_text() for file in files))

    def close(self) -> None:
        """End the server of warm commands."""
        if self.server is not None and self.server.stdin is not None:
            self.server.stdin.close()
            self.server.wait(600)
            self.server = None

    def python(self, *words: str, cwd: Path | None = None, timeout: float = 900, **env: str) -> RunSummary:
        """Run this interpreter."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=cwd or self.home,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return RunSummary(done.returncode, done.stdout, done.stderr)

    def last_run(self) -> dict[str, Any]:
        """Return what ZenML recorded of the newest run, read by a fresh process."""
        done = self.python(
            "-c", INSPECT, ZENML_CUSTOM_SOURCE_ROOT=str(self.source / "src"), ZENML_LOGGING_VERBOSITY="ERROR"
        )
        assert done.code == 0, done.err
        return json.loads(done.out)

    def statuses(self) -> dict[str, str]:
        """Return the status of every step of the newest run."""
        # Straight from the store's tables: importing ZenML for it takes seconds.
        newest = "select id from pipeline_run order by created desc limit 1"
        query = f"select name, status from step_run where pipeline_run_id = ({newest})"
        with contextlib.closing(
            sqlite3.connect(self.home / "zenml/local_stores/default_zen_store/zenml.db")
        ) as database:
            return dict(database.execute(query).fetchall())


@pytest.fixture(scope="session")
def new_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Checkout]]:
    """Return a maker of copies of this source tree, each with a home of its own.

    ZenML makes its store the first time that it is used, which takes seconds: one is made for all, and copied, but for
    those who ask for an empty home (`first`).
    """
    made: list[Checkout] = []
    template = tmp_path_factory.mktemp("template")

    def store(home: Path) -> None:
        if not (template / "zenml").is_dir():
            code = "from zenml.client import Client; Client().active_stack_model"
            done = Checkout(ROOT, template).python("-c", code, ZENML_ANALYTICS_OPT_IN="false")
            assert done.code == 0, done.err
        shutil.copytree(template / "zenml", home / "zenml")
        config = home / "zenml" / "config.yaml"
        config.write_text(config.read_text().replace(str(template), str(home)))

    def make(warm: bool = False, first: bool = False) -> Checkout:
        place = tmp_path_factory.mktemp("checkout")
        for folder in ("src", "configs"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("*.egg-info"))
        (place / ".zen").mkdir()
        home = place / "home"
        home.mkdir()
        if not first:
            store(home)
        made.append(Checkout(place, home))
        made[-1].warm = warm
        return made[-1]

    yield make
    for checkout in made:
        checkout.close()


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A three-class file with string labels and its own column names (csv, quoted, non-ASCII)."""
    import csv
    import random

    draw = random.Random(5)
    moods = {"schlecht": ["bad", "poor", "dull"], "mittel": ["it", "was", "plot"], "gut": ["good", "fine", "nice"]}
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    seen: set[str] = set()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["Satz", "Urteil"])
        while len(seen) < 240:
            label = draw.choice(list(moods))
            words = [draw.choice(moods[label]) for _ in range(3)]
            words += [
                draw.choice(["the", "a", "film", "cast", "is", "\u00fcber"]) for _ in range(draw.randrange(2, 12))
            ]
            draw.shuffle(words)
            text = " ".join(words)
            if text not in seen:
                seen.add(text)
                writer.writerow([text, label])
    return path


@pytest.fixture(scope="session")
def small(tiny_model: Path, reviews: Path) -> list[str]:
    """Overrides of a run that takes seconds: the tiny model on the three-class file."""
    return [
        f"model.name={tiny_model}",
        "data=files",
        f"data.train={reviews}",
        "data.text=Satz",
        "data.label=Urteil",
        "epochs=2",
        "batch.global_size=16",
        "optimizer.lr=5e-3",
        "compute=cpu",
    ]
