"""Clusters that stay from one job to the next, until whoever asked for them closes them.

What they cost between two jobs is told by itself, so that every second is paid for once; a file says up to when.
Machines of a driver that was killed are found by their names, and take themselves down after
`compute.idle_minutes_to_autostop`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ...config import UserError
from ...job import read_json, write_json
from ...pricing.cost import Attempt, attempt_of
from .cluster import Cluster
from .secret_cleanup import forget

log = logging.getLogger(__name__)

SLACK_S = 120.0
"""How much later than asked for SkyPilot may take down what is idle."""


@dataclass
class KeptCluster:
    """One of them, whether it is there or not."""

    pool: "KeptClusters"
    cluster: Cluster
    up: bool = False
    """Whether there may be machines."""
    taken: bool = False
    works: bool = False
    """Whether a job pays for it now."""
    job: str = ""
    """What an earlier driver ran there, by SkyPilot's name of it."""
    paid_until: float = 0.0
    """Seconds since the epoch; while a job works, when that began."""
    last: Attempt = field(default_factory=Attempt)
    """With its machine and price."""

    def begin(self, attempt: Attempt) -> None:
        """Note that its time is a job's from now on."""
        if self.up:
            self.tell()
        self.up, self.works, self.last = True, True, attempt
        self.pool.note()

    def end(self, *, up: bool) -> None:
        """Note that the job has ended, and whether the machines stay."""
        self.up, self.works, self.paid_until = up, False, time.time()
        self.pool.note()

    def gone(self) -> None:
        """Note that it took itself down, or was taken away, while no job worked there."""
        if self.up:
            self.up = False
            self.tell(self.pool.minutes * 60 + SLACK_S)

    def tell(self, most: float = math.inf, down: float = 0.0) -> None:
        """Tell of time that is no job's: before, and while it was taken down."""
        now = time.time()
        idle = max(0.0, min(now - down - self.paid_until, most))
        self.paid_until = now
        self.pool.tell(replace(self.last, ended="kept", phases={"idle_s": idle, "down_s": down}))

    def take_down(self) -> None:
        """Take its machines down; what fails is the pool's to tell."""
        began = time.time()
        try:
            self.cluster.take_down(self.pool.minutes)
            self.up = False
        except UserError as error:
            self.pool.failed.append(error)
        forget(self.pool.hidden, ended=self.cluster.name)
        self.tell(down=time.time() - began)
        self.pool.note()


class KeptClusters:
    """Clusters for jobs that run at once.

    Args:
        names: of the clusters; a job is given one that is up before another is brought up.
        folder: for SkyPilot's words and the file that says what is paid.
        seen: when anything of an earlier driver's was last seen to run, in seconds since the epoch.
        tell: told of time that is no job's.
    """

    def __init__(self, names: Sequence[str], folder: Path, seen: float, tell: Callable[[Attempt], None]) -> None:
        self.all = [KeptCluster(self, Cluster(name, folder / "skypilot.log")) for name in names]
        self.file, self.seen = folder / "machines.json", seen
        self.minutes = 10
        """After which idle machines take themselves down."""
        self.hidden: set[str] = set()
        """Secrets of which SkyPilot's server keeps copies."""
        self.failed: list[UserError] = []
        self._tell, self._opened, self._lock = tell, False, threading.RLock()
        self._closing: list[threading.Thread] = []

    @contextmanager
    def take(self, job: str) -> Iterator[KeptCluster]:
        """Lend a cluster to a job: the one where that very job runs, else one that is up."""
        with self._lock:
            self._open()
            free = (each for each in self.all if not each.taken)
            kept = min(free, key=lambda each: (each.job != job, not each.up))
            kept.taken = True
        try:
            yield kept
        finally:
            kept.taken, kept.job = False, ""

    def tell(self, attempt: Attempt) -> None:
        """Hand on what time that is no job's has cost."""
        with self._lock:
            self._tell(attempt)

    def note(self) -> None:
        """Write down what is there, and up to when it is paid for."""
        with self._lock:
            up = [each for each in self.all if each.up]
            until = {each.cluster.name: None if each.works else each.paid_until for each in up}
            write_json(
                self.file, {each.cluster.name: {"until": until[each.cluster.name], **asdict(each.last)} for each in up}
            )

    @property
    def idle_usd(self) -> float:
        """Dollars of time that is no job's, and of which nothing was told."""
        idle = (each for each in self.all if each.up and not each.works)
        return sum(each.last.usd_of(time.time() - each.paid_until) or 0.0 for each in idle)

    def shrink(self, most: int) -> None:
        """Begin to take down what is free beyond so many clusters: no more jobs will run at once."""
        with self._lock:
            up = sorted((each for each in self.all if each.up), key=lambda each: not each.taken)
            self._take_down(up[most:])

    def close(self) -> None:
        """Take all of them down.

        Raises:
            UserError: some may still run; it says which.
        """
        with self._lock:
            self._open()
            self._take_down(self.all)
        for thread in self._closing:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _take_down(self, some: Iterable[KeptCluster]) -> None:
        for kept in (each for each in some if each.up and not each.taken):
            kept.taken = True  # nobody is to have it
            self._closing.append(threading.Thread(target=kept.take_down, name="sky down"))
            self._closing[-1].start()

    def _open(self) -> None:
        """Find what an earlier driver has left."""
        if self._opened:
            return
        self._opened = True
        before = read_json(self.file) if self.file.is_file() else {}
        for kept in (each for each in self.all if each.cluster.name in before):
            entry = before[kept.cluster.name]
            kept.up, kept.paid_until, kept.last = True, entry["until"] or self.seen, attempt_of(entry)
            found = kept.cluster.last_job(lambda: None)
            if found is None:
                kept.gone()
            else:
                kept.job = found.name
                log.info("the cluster %s is left over from an earlier start: it is used again", kept.cluster.name)
