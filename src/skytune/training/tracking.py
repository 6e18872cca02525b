"""The numbers of a run on their way to trackers, beside training: a tracker that fails or stalls costs the run nothing.

Rank 0 keeps a thread for every tracker. It hands on the records of the history, from the first one: what a checkpoint
remembers of an earlier start, then what comes up. Whatever goes wrong there is said once.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import to_dict
from ..config.scrubbing import scrub
from ..config.tracking import TrackerConfig, not_installed
from ..job import Job, JobDir
from .callbacks import Callback, Run
from .recording import History
from .values import values
from .versions import versions

if TYPE_CHECKING:
    from .trackers import TensorBoard, Wandb

log = logging.getLogger(__name__)

SECONDS = 10.0
"""How long a tracker may take to finish where nothing else is said, or when a run was told to end."""


def folder(config: TrackerConfig, jobdir: JobDir, run_key: str) -> Path:
    """Return the folder of a run's tracker files."""
    return Path(config.dir).expanduser().absolute() / run_key if config.dir else jobdir.outputs / "trackers"


class Tracking(Callback):
    """Has a feed for every tracker, on rank 0."""

    def __init__(self, job: Job, history: History) -> None:
        self.job, self.history = job, history
        self.feeds: list[Feed] = []

    def on_run_start(self, run: Run) -> None:
        """Start the trackers; nobody waits for them."""
        wanted = run.config.tracker.wanted() if run.world.main else []
        if not wanted:
            return
        place, about = folder(run.config.tracker, run.job, self.job.run_key), self._about(run)
        for name in wanted:
            self.feeds.append(Feed(name, partial(self._open, name, place, run), about, self.history))
            self.feeds[-1].start()

    def on_step_end(self, run: Run) -> None:
        """Say that there may be news."""
        for feed in self.feeds:
            feed.news.set()

    def on_validation_end(self, run: Run) -> None:
        """Say that there are news."""
        self.on_step_end(run)

    def on_run_end(self, run: Run) -> None:
        """Let the trackers finish while the model is saved; wait for them only where nothing else is done."""
        self._end("preempted" if run.preempted else "completed")
        if run.preempted:
            self._close(run, SECONDS)

    def on_model_saved(self, run: Run) -> None:
        """Wait until everything is handed over, so long as the configuration says."""
        self._close(run, run.config.tracker.wandb.finish_timeout)

    def on_exception(self, run: Run) -> None:
        """Hand over what led there."""
        self._end("failed")
        self._close(run, SECONDS)

    def _open(self, name: str, place: Path, run: Run) -> "TensorBoard | Wandb":
        from . import trackers

        if name == "tensorboard":
            return trackers.TensorBoard(place)
        return trackers.Wandb(run.config.tracker.wandb, place, self.job.run_key, run.resumed_from is not None)

    def _about(self, run: Run) -> dict[str, Any]:
        facts = {
            "key": self.job.run_key,
            "fingerprints": self.job.fingerprints,
            "rows": self.job.sizes,
            "versions": versions(),
            "processes": run.world.size,
            "device": run.world.describe(),
            "precision": run.world.precision.value,
            "steps": run.total_steps,
        }
        return {**to_dict(run.config), "run": facts}

    def _end(self, status: str) -> None:
        for feed in self.feeds:
            feed.end(status)

    def _close(self, run: Run, seconds: float) -> None:
        for feed in self.feeds:
            feed.close(seconds if feed.name == "wandb" else SECONDS, f"{run.job.history} has it all")
        found = {feed.name: feed.place for feed in self.feeds if feed.place}
        if found:
            run.report["trackers"] = {name: _relative(place, run.job) for name, place in found.items()}
        self.feeds = []


class Feed(threading.Thread):
    """Hands the records of the history to one tracker, in a thread of its own."""

    def __init__(
        self, name: str, make: "Callable[[], TensorBoard | Wandb]", about: dict[str, Any], history: History
    ) -> None:
        super().__init__(daemon=True, name=name)
        self.make, self.about, self.history = make, about, history
        self.news = threading.Event()
        self.status = ""
        self.told = False
        self.tracker: TensorBoard | Wandb | None = None
        self.place: dict[str, str] = {}

    def run(self) -> None:
        """Start the tracker, hand over what there is and what comes, finish."""
        try:
            self.tracker = tracker = self.make()
            tracker.start()
            tracker.store_init_configuration(self.about)
            self.place = tracker.place()
            if tracker.trouble:
                self._warn(f"{tracker.trouble}; what it would get is kept: {_words(self.place)}")
            else:
                log.info("tracker %s: %s", self.name, _words(self.place))
            self._hand_over(tracker)
            tracker.end(self.status)
        except Exception as error:
            self._warn(f"failed ({_reason(self.name, error)})")
            if self.tracker is not None:
                self.tracker.abandon()

    def end(self, status: str) -> None:
        """Say that nothing more will come, and how the run ended."""
        self.status = status
        self.news.set()

    def close(self, seconds: float, consolation: str) -> None:
        """Wait so many seconds for it to finish; then give it up."""
        self.join(seconds)
        if self.is_alive():
            self._warn(f"did not take everything within {seconds:g} s ({consolation})")
            if self.tracker is not None:
                self.tracker.abandon()

    def _hand_over(self, tracker: "TensorBoard | Wandb") -> None:
        done = 0
        while True:
            self.news.wait()
            self.news.clear()
            ended = bool(self.status)  # looked at before the records: when the run has ended, the last one is there
            records = self.history.records
            while done < len(records):
                record = records[done]
                tracker.hand(values(record), record["step"], records[-1]["elapsed_s"] - record["elapsed_s"])
                done += 1
            if ended:
                return

    def _warn(self, text: str) -> None:
        """Say what is wrong, once."""
        if not self.told:
            self.told = True
            log.warning("tracker %s %s; training does not depend on it", self.name, text)


def _words(place: dict[str, str]) -> str:
    return place.get("url") or f"{place.get('command', '')} {place.get('folder', 'nothing')}".strip()


def _relative(place: dict[str, str], job: JobDir) -> dict[str, str]:
    """Return a place with a folder inside the job directory as seen from there: the job may be fetched elsewhere."""
    inside = Path(place["folder"])
    return {**place, "folder": str(inside.relative_to(job.root))} if inside.is_relative_to(job.root) else place


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(name):  # Accelerate tries another one
        return not_installed(name)
    return f"{type(error).__name__}: {(scrub(str(error)).strip().splitlines() or [''])[0]}"
