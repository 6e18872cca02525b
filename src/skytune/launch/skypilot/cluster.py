"""One SkyPilot cluster: the few requests that the launcher makes, each within a time, its answers in plain values."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...common.background import Pending
from ...config import UserError
from ..remote.attempts import insist
from ..remote.exchange import Tick
from ..remote.offer import Offer
from .messages import Lines, telling
from .scripts import JOB, WORKDIR

log = logging.getLogger(__name__)

QUICK_SECONDS = 90.0
"""How long a question about a cluster may take."""

TRANSFER_SECONDS = 1800.0
DOWN_SECONDS = 600.0
DOWN_WAITS = (1.0, 2.0, 4.0, 0.0)


@dataclass(frozen=True)
class LastJob:
    """The newest job of a cluster that is there."""

    state: str
    """The cluster's: UP, INIT or STOPPED."""
    number: int = 0
    """0: there is none."""
    name: str = ""
    runs: bool = False
    succeeded: bool = False


class Cluster:
    """A cluster by name, whether it is there or not."""

    def __init__(self, name: str, record: Path) -> None:
        self.name, self.record = name, record
        self._request: Any = None
        self._known: Any = None
        """SkyPilot's handle of the machines, once there is one: their addresses do not change."""

    def plan(self, task: dict[str, Any], tick: Tick) -> Offer:
        """Ask SkyPilot which machine it would take first; nothing is launched."""
        import sky
        from sky.optimizer import Optimizer

        def ask() -> Offer:
            with sky.Dag() as dag:
                dag.add(sky.Task.from_yaml_config(dict(task)))
            sky.get(sky.optimize(dag))  # the server knows which clouds there are, but does not say what it chose
            return Offer.of(Optimizer.optimize(dag, quiet=True).tasks[0].best_resources)

        return Pending(ask, "sky optimize").wait(tick, 10 * QUICK_SECONDS)

    def launch(self, task: dict[str, Any], idle_minutes: int, show: Callable[[str], None], tick: Tick) -> int:
        """Bring machines up, send the files, submit the job; return its number."""
        import sky

        def ask() -> int:
            made = sky.Task.from_yaml_config(dict(task))
            self._request = sky.launch(made, cluster_name=self.name, idle_minutes_to_autostop=idle_minutes, down=True)
            lines: list[str] = []

            def heard(text: str) -> None:
                lines.append(text)
                show(text)

            try:
                job, self._known = sky.stream_and_get(self._request, output_stream=Lines(heard, self.record))
            except sky.exceptions.ResourcesUnavailableError as error:
                error.failover_history += [ValueError(text) for text in telling(lines)]
                raise
            return int(job)

        return Pending(ask, "sky launch").wait(tick)

    def give_up_launch(self) -> None:
        """Have SkyPilot's server stop bringing machines up, which it goes on to do without us."""
        import sky

        if self._request is not None:
            asked = Pending(lambda: sky.get(sky.api_cancel(self._request, silent=True)), "sky api cancel")
            try:
                asked.wait(seconds=QUICK_SECONDS)
            except Exception as error:
                log.debug("cancelling the launch: %s", error)

    def job_status(self, job: int, tick: Tick) -> str:
        """Return SkyPilot's word for what the job does: SETTING_UP, RUNNING, SUCCEEDED, FAILED, ..."""
        import sky

        found = Pending(lambda: sky.get(sky.job_status(self.name, [job])), "sky job status").wait(tick, QUICK_SECONDS)
        status = found.get(job)
        return "GONE" if status is None else str(status.value)

    def last_job(self, tick: Tick) -> "LastJob | None":
        """Return the newest job of a cluster; None where there is no cluster."""
        import sky

        state = self.state(tick)
        if state == "GONE":
            return None
        jobs = (
            Pending(lambda: sky.get(sky.queue(self.name)), "sky queue").wait(tick, QUICK_SECONDS)
            if state == "UP"
            else []
        )
        newest = max(jobs, key=lambda each: int(each["job_id"]), default=None)
        if newest is None:
            return LastJob(state)
        status = newest["status"]
        return LastJob(
            state,
            number=int(newest["job_id"]),
            name=str(newest["job_name"]),
            runs=not status.is_terminal(),
            succeeded=status.value == "SUCCEEDED",
        )

    def so_far(self, job: int, tick: Tick) -> dict[str, float]:
        """Return the seconds by phase that machines which run already have taken for their job."""
        import sky

        def ask() -> dict[str, float]:
            up = float(sky.get(sky.status([self.name]))[0]["launched_at"])
            (found,) = (each for each in sky.get(sky.queue(self.name)) if int(each["job_id"]) == job)
            now = time.time()
            end = found["end_at"] or now
            start = found["start_at"] or end
            spans = {
                "provision_s": found["submitted_at"] - up,
                "setup_s": start - found["submitted_at"],
                "job_s": end - start,
                "idle_s": now - end,
            }
            return {name: max(0.0, float(seconds)) for name, seconds in spans.items()}

        return Pending(ask, "sky queue").wait(tick, QUICK_SECONDS)

    def autodown(self, minutes: int) -> None:
        """Have the machines take themselves down when they were idle for so long."""
        import sky

        Pending(lambda: sky.get(sky.autostop(self.name, minutes, down=True)), "sky autostop").wait(
            seconds=QUICK_SECONDS
        )

    def state(self, tick: Tick | None = None) -> str:
        """Return UP, INIT (part of it is missing), STOPPED or GONE, asked anew of the cloud."""
        import sky

        mode = sky.StatusRefreshMode.FORCE
        found = Pending(lambda: sky.get(sky.status([self.name], refresh=mode)), "sky status").wait(tick, QUICK_SECONDS)
        return str(found[0]["status"].value) if found else "GONE"

    def launched(self, tick: Tick) -> Offer | None:
        """Return the machine that was really launched; None if SkyPilot does not know the cluster."""
        handle = self._handle(tick)
        return None if handle is None else Offer.of(handle.launched_resources)

    def tail(self, job: int, show: Callable[[str], None]) -> Pending[Any]:
        """Begin to show the job's log; return the pending call."""
        import sky

        stream = Lines(show, self.record)
        return Pending(lambda: sky.tail_logs(self.name, job, follow=True, output_stream=stream), "sky logs")

    def down(self) -> None:
        """Take all machines down."""
        import sky

        try:
            Pending(lambda: sky.get(sky.down(self.name)), "sky down").wait(seconds=DOWN_SECONDS)
        except sky.exceptions.ClusterDoesNotExist:
            pass

    def take_down(self, idle_minutes: int | None) -> None:
        """Take all machines down, again where that fails.

        Args:
            idle_minutes: after which they take themselves down.

        Raises:
            UserError: it fails again and again; it says what may still cost money.
        """
        reason = insist(self.down, DOWN_WAITS)
        if not reason:
            return
        raise UserError(
            f"machines of {self.name} may still run and cost money ({reason}): remove them with `sky down "
            f"{self.name}`; they take themselves down after {idle_minutes} idle minutes"
        )

    # The machines themselves, by SkyPilot's own ssh.

    def touch(self, name: str, tick: Tick) -> None:
        """Make an empty file in the job directory of every machine."""
        self._everywhere(f"touch {JOB}/{name}", tick)

    def clear(self, tick: Tick) -> None:
        """Remove what an earlier job was sent and has left, from every machine."""
        self._everywhere(f"rm -rf {WORKDIR}/*", tick)

    def fetch(self, names: list[str], root: Path, tick: Tick, nodes: slice = slice(0, 1)) -> None:
        """Copy files and folders of the job directory from machines into `root`; one that is not there is left out."""
        for runner in self._runners(tick)[nodes]:
            for name in names:
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if runner.run(f"test -e {JOB}/{name}", stream_logs=False, connect_timeout=30) == 0:
                    Pending(partial(_down, runner, name, target), "rsync").wait(tick, TRANSFER_SECONDS)

    def _everywhere(self, command: str, tick: Tick) -> None:
        for runner in self._runners(tick):
            Pending(partial(runner.run, command, stream_logs=False, connect_timeout=30), "ssh").wait(
                tick, QUICK_SECONDS
            )

    def _runners(self, tick: Tick) -> list[Any]:
        handle = self._handle(tick)
        return [] if handle is None else list(handle.get_command_runners())

    def _handle(self, tick: Tick) -> Any:
        import sky

        if self._known is None:
            found = Pending(lambda: sky.get(sky.status([self.name])), "sky status").wait(tick, QUICK_SECONDS)
            self._known = found[0]["handle"] if found else None
        return self._known


def _down(runner: Any, name: str, target: Path) -> None:
    """Copy one thing from a machine; what is there already is compared first (rsync)."""
    folder = "." not in target.name
    if folder:
        target.mkdir(parents=True, exist_ok=True)
    slash = "/" if folder else ""
    runner.rsync(f"{JOB}/{name}{slash}", f"{target}{slash}", up=False, stream_logs=False)
