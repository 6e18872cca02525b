"""The trackers: Accelerate's, each with what a run needs that may die and go on elsewhere."""

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate.tracking import TensorBoardTracker, WandBTracker

from ..common.mappings import flatten
from ..config.scrubbing import scrub
from ..config.secrets import reveal
from ..config.tracking import WandbConfig

log = logging.getLogger(__name__)


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
        own = {"id": run_key, "name": run_key, **reveal(config.args)}
        waits = {"init_timeout": config.init_timeout, "login_timeout": config.init_timeout}
        own["settings"] = {**waits, "console": "off", **(own.get("settings") or {})}
        super().__init__(
            config.project or os.environ.get("WANDB_PROJECT") or "skytune",
            entity=config.entity,
            group=config.group,
            tags=config.tags or None,
            notes=config.notes,
            mode=config.effective_mode(),
            save_code=config.save_code,
            dir=str(folder),
            resume="allow" if resumed else None,
            **own,
        )
        self.folder, self.timeout, self.first, self.trouble = folder, config.init_timeout, 0, ""

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
        threading.Thread(
            target=_end_service_after, args=(0.5, threading.Event(), threading.Event()), daemon=True
        ).start()


def _end_service_after(seconds: float, over: threading.Event, late: threading.Event) -> None:
    """End W&B's service from so many seconds on, until `over`; `late` says whether it came to that."""
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
