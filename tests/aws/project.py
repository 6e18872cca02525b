"""This project inside the farm: a copy of the source tree, a ZenML store with a stack on the farm, and its command."""

import json
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from farm import Farm
from warmed import python

ROOT = Path(__file__).resolve().parents[2]

REGISTER = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {source!r})
from skytune.stacks import environment
environment.prepare(Path({source!r}))
client = environment.connect()
from skytune.stacks.flavor import register
register(client, {name!r}, json.loads({settings!r}))
client.activate_stack({name!r})
"""

LAUNCH = """
import json, sys
from pathlib import Path
sys.path.insert(0, {source!r})
from skytune.config import ComputeConfig, UserError, from_dict
from skytune.job import JobDir
from skytune.launch.skypilot import SkyPilotLauncher
asked = from_dict(ComputeConfig, json.loads({asked!r}), "compute")
try:
    SkyPilotLauncher(json.loads({stack!r})).run(JobDir(Path({folder!r})), asked)
except UserError as error:
    sys.exit(f"error: {{error}}")
"""

LAST = """
import json
from datetime import UTC
from zenml.client import Client
run = Client().list_pipeline_runs(sort_by="desc:created", size=1, hydrate=True).items[0]
steps = {}
for name, step in run.steps.items():
    metadata = {k: v for k, v in step.run_metadata.items() if isinstance(v, (int, float, str))}
    outputs = {k: v[0].uri for k, v in step.outputs.items()}
    start = step.start_time.replace(tzinfo=UTC).timestamp()
    steps[name] = {"status": step.status.value, "outputs": outputs, "metadata": metadata, "start": start}
print(json.dumps({"status": run.status.value, "steps": steps}))
"""


@dataclass
class RunSummary:
    """A finished command."""

    code: int
    out: str


class Project:
    """A source tree with a home inside the farm."""

    started: ClassVar[list["subprocess.Popen[str]"]] = []
    """Commands of all projects; one that a failed test left running would bring machines up again."""

    @classmethod
    def end_all(cls) -> None:
        """End the commands that still run, as Ctrl-C does: SkyPilot's server would finish a killed one's launch."""
        left = [process for process in cls.started if process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGINT)
        for process in left:
            try:
                process.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                process.kill()
        cls.started.clear()

    def __init__(self, farm: Farm, place: Path, stack: str = "aws", **settings: Any) -> None:
        self.farm, self.place, self.stack, self.settings = farm, place, stack, settings
        for folder in ("src", "configs"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for file in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / file, place / file)
        (place / ".zen").mkdir()
        self.home = place / "home"
        self.home.mkdir()
        self.env = {
            **farm.environment(),
            "SKYTUNE_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "100",
            "ZENML_CONFIG_PATH": str(place / "zenml"),
            "ZENML_CUSTOM_SOURCE_ROOT": str(place / "src"),
            "ZENML_REPOSITORY_PATH": str(place),
        }
        self.register(stack, **settings)

    def register(self, stack: str, **settings: Any) -> None:
        """Register and choose a stack whose machines have these keys of `compute`."""
        source = str(self.place / "src")
        code = REGISTER.format(source=source, name=stack, settings=json.dumps(settings))
        self.python("-c", code)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Start `src/run.py`; its output is one text."""
        process = self.farm.popen(
            [*python(self.farm), str(self.place / "src" / "run.py"), *words],
            env={**self.env, **env},
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.started.append(process)
        return process

    def run(self, *words: str, timeout: float = 600, **env: str) -> RunSummary:
        """Run `src/run.py` to its end."""
        began = time.monotonic()
        with self.start(*words, **env) as process:
            try:
                out, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
                raise AssertionError(f"run.py did not end within {timeout:.0f} s:\n{out}") from None
        print(f"run.py {' '.join(words)}: {time.monotonic() - began:.0f} s, exit code {process.returncode}\n{out}")
        return RunSummary(process.returncode, out)

    def launching(self, **compute: Any) -> str:
        """Return code that hands the job of the only run to the launcher, without the pipeline around it."""
        return LAUNCH.format(
            source=str(self.place / "src"),
            folder=str(self.run_folder()),
            stack=json.dumps(self.settings),
            asked=json.dumps({"device": "cpu", **compute}),
        )

    def launch(self, timeout: float = 600, **compute: Any) -> RunSummary:
        """Run that code; keys of `compute`."""
        words = [*python(self.farm), "-c", self.launching(**compute)]
        done = self.farm.run(words, env=self.env, cwd=self.place, timeout=timeout)
        print(done.stdout)
        return RunSummary(done.returncode, done.stdout)

    def python(self, *words: str, timeout: float = 200, **env: str) -> str:
        """Run this interpreter inside the farm; return its output."""
        done = self.farm.run([*python(self.farm), *words], env={**self.env, **env}, cwd=self.place, timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def last_run(self) -> dict[str, Any]:
        """Return what ZenML recorded of the newest run."""
        found: dict[str, Any] = json.loads(self.python("-c", LAST).splitlines()[-1])
        return found

    def run_folder(self) -> Path:
        """Return the folder of the only run."""
        (folder,) = [path for path in (self.home / "runs").iterdir() if path.is_dir()]
        return folder

    def result(self) -> dict[str, Any]:
        """Return what the workers of the only run left."""
        found: dict[str, Any] = json.loads((self.run_folder() / "outputs" / "result.json").read_text())
        return found


def terminated(farm: Farm) -> list[str]:
    """Return the ids of machines that somebody asked EC2 to end, in order."""
    return [id_ for call in farm.calls(action="TerminateInstances") for id_ in re.findall(r"i-[0-9a-f]+", str(call))]


def read_until(process: "subprocess.Popen[str]", text: str, seconds: float = 600) -> str:
    """Read a process's output until a line holds a text; return what was read."""
    assert process.stdout is not None
    message, end = "", time.monotonic() + seconds
    while text not in message and time.monotonic() < end:
        line = process.stdout.readline()
        if not line:
            break
        print(line, end="", flush=True)
        message += line
    assert text in message, f"'{text}' was never said"
    return message
