"""SIGKILL to a worker's whole process group at random moments, until so many rounds are over, and what must hold then.

Half of the moments are drawn over the whole life of an undisturbed run; the other half are aimed at a save: the group
is frozen, looked at, and killed only if it is in the middle of one. A run that came to its end is checked and the next
one begins.

    SKYTUNE_KILL_SEED=7         the moments of an earlier test (every test prints its own)
    SKYTUNE_SOAK_ROUNDS=200     rounds a store in `make soak`
    SKYTUNE_SOAK_MINUTES=60     after which a soak ends, whatever its rounds; its log says how many there were
"""

import fcntl
import json
import os
import platform
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from forked_workers import Life, Lives
from job_dirs import Place, assert_permutations, history, result, same, weights

SOAK_LOG = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "soak.md"
ROWS, EPOCHS, EVERY = 46, 5, 2
STEPS_PER_EPOCH = 6
STEPS = EPOCHS * STEPS_PER_EPOCH
"""The last batch of an epoch has 6 rows instead of 8."""

SETTINGS = {"rows": ROWS, "epochs": EPOCHS, "eval": {"every_epochs": 2}}
SAVED = {0} | {step for step in range(1, STEPS + 1) if step % EVERY == 0 or step % (2 * STEPS_PER_EPOCH) == 0}
"""Steps from which a run may go on; 0 means from the start."""


@dataclass
class Tally:
    """What became of all rounds."""

    seed: int
    kills: int = 0
    mid_save: int = 0
    """Kills in the middle of a save: its files were being made or sent, or the manifest was."""
    torn: int = 0
    """Kills that left half a checkpoint: files without their manifest."""
    finished: int = 0
    """Runs that came to their end and were compared with the undisturbed one."""
    resumed: list[int] = field(default_factory=list)
    """Where lives went on; 0 for the start."""
    seconds: float = 0.0


class Kind(Protocol):
    """A kind of store, as the test sees it from outside."""

    save_seconds: float
    """About how long a save takes."""

    def url(self, name: str) -> str:
        """Return the store of a run."""

    def saving(self, name: str, process: int) -> bool:
        """Whether this process is in the middle of a save."""

    def torn(self, name: str) -> bool:
        """Whether the store holds half a checkpoint."""

    def finished(self, name: str) -> bool:
        """Whether the store says that the run came to its end."""


class Kept:
    """One run: its job directory, and the last step that it announced as saved."""

    def __init__(self, name: str, job: Path) -> None:
        self.name, self.job, self.announced = name, job, 0

    def again(self, name: str, kind: Kind) -> "Kept":
        """Return the same run before its first life, with a store of its own."""
        job = self.job.with_name(name)
        shutil.copytree(self.job / "inputs", job / "inputs", symlinks=True)
        text = (self.job / "job.json").read_text()
        (job / "job.json").write_text(text.replace(json.dumps(kind.url(self.name)), json.dumps(kind.url(name))))
        return Kept(name, job)

    def look(self, life: Life, tally: Tally) -> None:
        """Check what a life said: it went on from a valid step that is no older than the last one announced."""
        output = life.output
        begun = re.search(r"^training \d+ steps", output, re.M)
        found = re.search(r"^resuming from step (\d+) ", output, re.M)
        at = int(found[1]) if found else 0
        if begun or found:
            assert at >= self.announced, f"went back to step {at}, {self.announced} was announced as saved\n{output}"
            assert at in SAVED, f"step {at} is none at which this run saves"
            tally.resumed.append(at)
        assert "Traceback" not in output and "NOT SAVED" not in output, output
        self.announced = max(
            [self.announced, at, *map(int, re.findall(r"^checkpoint: step (\d+) saved", output, re.M))]
        )


def check_kills(lives: Lives, place: Place, kind: Kind, tally: Tally, rounds: int, minutes: float = 1e9) -> None:
    """Kill so often, and compare every run that comes to its end with one that nobody disturbed."""
    print(f"SKYTUNE_KILL_SEED={tally.seed}")
    started, draw = time.monotonic(), random.Random(tally.seed)
    checkpoint = {"store": kind.url("calm"), "every_steps": EVERY, "keep": 2}
    calm = Kept("calm", place.lay("calm", rows=ROWS, epochs=EPOCHS, eval={"every_epochs": 2}, checkpoint=checkpoint))
    begun = time.monotonic()
    life = lives.live(calm.job)
    length = time.monotonic() - begun
    assert life.code == 0, life.output
    wanted = weights(calm.job), history(calm.job), place.seen(calm.job)
    assert_permutations(wanted[2], ROWS, STEPS_PER_EPOCH)

    run = calm.again("killed-0", kind)
    while True:
        tally.seconds = time.monotonic() - started
        over = tally.kills >= rounds or tally.seconds > minutes * 60
        life = lives.start(run.job)
        killed = not over and _kill(life, run, kind, draw, length, tally)
        if not killed and not life.ended(600):
            life.kill()
            raise AssertionError(f"a life that nobody disturbed did not come to its end:\n{life.output}")
        run.look(life, tally)
        if killed and tally.kills % 20 == 0:
            print(f"{tally.kills} kills, {tally.finished} runs finished, {tally.seconds:.0f} s", flush=True)
        if killed and not kind.finished(run.name):
            continue
        assert killed or life.code == 0, life.output
        steps = place.seen(run.job)
        assert_permutations(steps, ROWS, STEPS_PER_EPOCH)
        assert (history(run.job), steps) == wanted[1:]
        assert same(weights(run.job), wanted[0])
        assert (result(run.job)["steps"], result(run.job)["train_rows"]) == (STEPS, ROWS * EPOCHS)
        tally.finished += 1
        if over:
            break
        run = calm.again(f"killed-{tally.finished}", kind)
    tally.seconds = time.monotonic() - started


def _kill(life: Life, run: Kept, kind: Kind, draw: random.Random, length: float, tally: Tally) -> bool:
    """Kill a life at a moment of its own; return False where it came to its end before."""
    aimed, moment, later = draw.random() < 0.5, draw.uniform(0, length), draw.uniform(0, kind.save_seconds)
    if life.ended(moment):
        return False
    while True:
        if aimed:
            while not kind.saving(run.name, life.group):
                if life.ended(0.002):
                    return False
            time.sleep(later)
        if not life.freeze():
            return False
        if not aimed or kind.saving(run.name, life.group):
            break
        life.send(signal.SIGCONT)  # the save is over already: wait for the next one
    tally.mid_save += kind.saving(run.name, life.group)
    tally.kills += 1
    life.kill()
    tally.torn += kind.torn(run.name)
    return True


def seed() -> int:
    """Return the seed of this test."""
    return int(os.environ.get("SKYTUNE_KILL_SEED") or random.SystemRandom().randrange(10**6))


def soak(lives: Lives, place: Place, kind: Kind) -> None:
    """Kill for long, and write down what happened, whatever it was."""
    rounds = int(os.environ.get("SKYTUNE_SOAK_ROUNDS") or 200)
    minutes = float(os.environ.get("SKYTUNE_SOAK_MINUTES") or 60)
    tally, failure = Tally(seed()), ""
    try:
        check_kills(lives, place, kind, tally, rounds, minutes)
    except BaseException as error:
        failure = f"{type(error).__name__}: {str(error).strip()[:2000]}"
        raise
    finally:
        _record(kind.url("").split("//")[0] + "//", tally, rounds, failure)
    assert tally.kills == rounds, f"only {tally.kills} of {rounds} rounds in {minutes} minutes"


def _record(store: str, tally: Tally, rounds: int, failure: str) -> None:
    """Append to the log."""
    import torch

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    counts: dict[str, int] = {}
    for at in tally.resumed:
        name = "start" if at == 0 else f"{(at - 1) // 6 * 6 + 1}-{(at - 1) // 6 * 6 + 6}"
        counts[name] = counts.get(name, 0) + 1
    order = sorted(counts, key=lambda name: int(name.split("-")[0]) if name != "start" else 0)
    lines = [
        f"\n## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {store}\n",
        f"- rounds (kills): {tally.kills} of {rounds}, in {tally.seconds / 60:.1f} minutes; "
        f"SKYTUNE_KILL_SEED={tally.seed}",
        f"- in the middle of a save: {tally.mid_save}; half a checkpoint left in the store: {tally.torn}",
        f"- runs that came to their end and were compared with the undisturbed one: {tally.finished}",
        f"- starts by the step they went on from, of {STEPS}: "
        + (", ".join(f"{name}: {counts[name]}" for name in order) or "none"),
        f"- failures: {failure or 'none'}",
        f"- machine: {cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}",
    ]
    SOAK_LOG.parent.mkdir(parents=True, exist_ok=True)
    with SOAK_LOG.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.tell() == 0:
            file.write(HEADER)
        file.write("\n".join(lines) + "\n")


HEADER = """# Kill test: the log of `make soak`

SIGKILL to a training worker's whole process group at random moments, half of them in the middle of a save, and the same
job again, until it is done. Every start must go on from a valid step that is no older than the last one that was
announced as saved; every run that comes to its end must have seen each row once an epoch, and its losses and weights
must be those of a run that nobody disturbed, to the last bit. `tests/helpers/kills.py` has the details; it appends
one entry a store and soak.
"""
