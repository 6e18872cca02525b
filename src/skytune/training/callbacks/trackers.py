"""The numbers of a run on their way to trackers, beside training: a tracker that fails or stalls costs the run nothing.

Rank 0 keeps a thread for every tracker. It hands on the records of the history, from the first one: what a checkpoint
remembers of an earlier start, then what comes up. Whatever goes wrong there is said once. The trackers are
Accelerate's, each with what a run needs that may die and go on elsewhere.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.tracking import TensorBoardTracker, WandBTracker

from ...common.mappings import flatten
from ...config import to_dict
from ...config.schema.tracking import TrackerConfig, WandbConfig, not_installed
from ...config.scrubbing import scrub
from ...config.secrets import resolve_secrets
from ...job import Job, JobDir
from ..outputs import values
from ..versions import versions
from .base import Callback, Run
from .history import History

log = logging.getLogger(__name__)

SECONDS = 10.0
"""How long a tracker may take to finish where nothing is uploaded, or when a run was told to end."""

UPLOAD_SECONDS = 60.0
"""How long the end of a run waits for the last uploads."""

INIT_SECONDS = 30.0
"""After which a W&B server that does not answer is given up where `settings.init_timeout` says nothing else."""


def folder(config: TrackerConfig, jobdir: JobDir, run_key: str) -> Path:
    """Return the folder of a run's tracker files."""
    return Path(config.dir).expanduser().absolute() / run_key if config.dir else jobdir.outputs / "trackers"


class Tracking(Callback):
    """Has a feed for every tracker, on rank 0."""

    def __init__(self, job: Job, history: History) -> None:
        self.job, self.history = job, history
        self.feeds: list[TrackerFeed] = []

    def on_run_start(self, run: Run) -> None:
        """Start the trackers; nobody waits for them."""
        wanted = run.config.tracker.wanted() if run.world.main else []
        if not wanted:
            return
        place, about = folder(run.config.tracker, run.job, self.job.run_key), self._about(run)
        for name in wanted:
            self.feeds.append(TrackerFeed(name, partial(self._open, name, place, run), about, self.history))
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
        """Wait until everything is handed over, but not for ever."""
        self._close(run, UPLOAD_SECONDS)

    def on_exception(self, run: Run) -> None:
        """Hand over what led there."""
        self._end("failed")
        self._close(run, SECONDS)

    def _open(self, name: str, place: Path, run: Run) -> "TensorBoard | Wandb":
        if name == "tensorboard":
            return TensorBoard(place)
        return Wandb(run.config.tracker.wandb, place, self.job.run_key, run.resumed_from is not None)

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


class TrackerFeed(threading.Thread):
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


class TensorBoard(TensorBoardTracker):
    """Event files in `<folder>/tensorboard`.

    Every start writes the whole history, which a checkpoint holds, into a new file, and tells TensorBoard to forget
    what older files said (`purge_step`): the curves are whole on whatever machine, and no step is there twice.
    """

    trouble = ""
    """What went wrong without ending it; empty where nothing did."""

    def __init__(self, folder: Path) -> None:
        super().__init__(run_name="tensorboard", logging_dir=folder, purge_step=0)
        self.folder = folder / "tensorboard"

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write the configuration as text, and its single values as hyperparameters.

        Accelerate's own takes no nested values, and adds a run named after the clock at every start.
        """
        import yaml
        from torch.utils.tensorboard.summary import hparams

        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        self.writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()), 0)
        single = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in flatten(values).items()}
        metrics = ("train/loss", "validation/loss", f"validation/{values['checkpoint']['metric']}")
        for summary in hparams(single, dict.fromkeys(metrics)):
            self.writer.file_writer.add_summary(summary)
        self.writer.flush()

    def hand(self, values: dict[str, float], step: int, age: float) -> None:
        """Write; the relative times that TensorBoard shows are those of training."""
        self.log(values, step=step, walltime=time.time() - age)

    def end(self, status: str) -> None:
        """Close the file."""
        self.finish()

    def place(self) -> dict[str, str]:
        """Return where to look: `folder`, and `command` (the folder follows it) or `url`."""
        return {"folder": str(self.folder), "command": "tensorboard --logdir"}

    def abandon(self) -> None:
        """Do nothing: its thread ends with the process."""


class Wandb(WandBTracker):
    """Weights & Biases: one run a run key. Files in `<folder>/wandb`.

    A run that goes on resumes its W&B run; steps that the server has already are left out (it takes none twice). One
    that starts anew replaces what was there under its key, as it does in the run's folder.

    `wandb.init` waits for ever for a server that does not answer, and so does the end of a process that called it
    (seen with 0.26, whatever its `init_timeout`). Ending its service, a child of this process, bounds both.
    """

    def __init__(self, config: WandbConfig, folder: Path, run_key: str, resumed: bool) -> None:
        own = {"id": run_key, "name": run_key, **resolve_secrets(config.args)}
        settings = {"init_timeout": INIT_SECONDS, "console": "off", **(own.get("settings") or {})}
        self.timeout, self.first, self.trouble = float(settings["init_timeout"]), 0, ""
        own["settings"] = {"login_timeout": self.timeout, **settings}
        super().__init__(
            config.project or os.environ.get("WANDB_PROJECT") or "skytune",
            mode=config.effective_mode(),
            dir=str(folder),
            resume="allow" if resumed else None,
            **own,
        )
        self.folder = folder

    def start(self) -> None:
        """Begin online where that is wanted and can be had, else offline."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its faults, with what stood around them, to others
        if self.init_kwargs["mode"] != "online":
            return self._start_without_server(self.init_kwargs["mode"])
        import wandb  # noqa: F401  the server is not to blame for the time that this takes

        over, late = threading.Event(), threading.Event()
        threading.Thread(target=_end_service_after, args=(self.timeout, over, late), daemon=True).start()
        try:
            super().start()
            self.first = int(self.run.step or 0)
        except Exception as error:
            reason = f"{self.timeout:g} s without an answer" if late.is_set() else f"{type(error).__name__}: {error}"
            over.set()
            _forget_service()
            self._start_without_server("offline")
            self.trouble = f"is not online ({scrub(reason).strip().splitlines()[0]})"
        finally:
            over.set()

    def _start_without_server(self, mode: str) -> None:
        self.init_kwargs |= {"mode": mode, "resume": None}  # nobody knows of an earlier run
        super().start()

    def hand(self, values: dict[str, float], step: int, age: float) -> None:
        """Hand on what the server has not got."""
        if step >= self.first:
            self.log(values, step=step)

    def end(self, status: str) -> None:
        """Finish, and say how the run ended."""
        if status == "preempted":
            self.run.mark_preempting()
        self.run.finish(exit_code=0 if status == "completed" else 1)

    def place(self) -> dict[str, str]:
        """Return the same for W&B."""
        folder = str(Path(self.run.dir).parent)
        if self.init_kwargs["mode"] == "online":
            return {"folder": folder, "url": str(self.run.url)}
        return {"folder": folder, "command": "wandb sync"}

    def abandon(self) -> None:
        """End its service, and any that it may still start."""
        _forget_service()
        threading.Thread(target=_end_service_after, args=(0.5,), daemon=True).start()


def _end_service_after(
    seconds: float, over: threading.Event | None = None, late: threading.Event | None = None
) -> None:
    """End W&B's service from so many seconds on, until `over`; `late` says whether it came to that."""
    over, late = over or threading.Event(), late or threading.Event()
    while not over.wait(0.5 if late.is_set() else seconds):
        late.set()
        _end_service()


def _forget_service() -> None:
    """End W&B's service, and have the library start another one when it is called again."""
    import wandb

    _end_service()
    try:
        wandb.teardown()
    except Exception as error:
        log.debug("wandb.teardown: %s", error)  # it misses its service


def _end_service() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.name().startswith("wandb-"):
                child.kill()  # asked kindly, it goes without writing down what it has either
                child.wait(2)
