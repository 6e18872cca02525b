"""The part of a run that a machine takes which is not node 0: its workers, from their start to their end."""

import logging
import signal
import threading
import time
from collections import deque
from typing import Any

from ..config import LaunchConfig, UserError
from ..job import JobDir
from .channel import Channel, Closed
from .follow import Follower
from .gathering import TOKEN
from .gpus import threads_each
from .local import environment, start
from .machine import network
from .nodes import Nodes
from .output import pump
from .processes import end_group
from .several import agent
from .stopping import Stopping

log = logging.getLogger(__name__)

EXIT_OK, EXIT_ERROR, EXIT_PREEMPTED, EXIT_INTERRUPTED = 0, 1, 75, 130


class _Peers:
    """What node 0 says while the workers run."""

    def __init__(self, channel: Channel, stopping: Stopping, grace: float) -> None:
        self.channel, self.stopping, self.grace = channel, stopping, grace
        self.status = ""
        """How the run ended, once node 0 has said so."""
        self.closed: Closed | None = None
        self._asked = False
        self._until = float("inf")
        self._thread = threading.Thread(target=self._listen, daemon=True, name="node-0")
        self._thread.start()

    def _listen(self) -> None:
        try:
            self.status = str(self.channel.expect("end")["status"])
        except Closed as error:
            self.closed = error
        except UserError as error:
            self.closed = Closed(str(error))

    def check(self) -> None:
        """End the wait for the workers where node 0 has ended badly or is gone; hand a signal on to it."""
        self.stopping.check()
        if self.closed is not None:
            raise self.closed
        if self.status == "failed" or time.monotonic() > self._until:
            raise _Ended
        if self.status and self._until == float("inf"):  # the workers here are at their end, too
            self._until = time.monotonic() + self.grace
        if self.stopping.asked_by is not None and not self._asked:
            self._asked = True
            self.channel.send("stop")

    def last_word(self, seconds: float) -> str:
        """Wait so long for node 0 to say how the run ended."""
        self._thread.join(seconds)
        return self.status


class _Ended(Exception):
    """Node 0 has ended, badly or long ago."""


def train(
    channel: Channel, job: JobDir, nodes: Nodes, each: int, launch: LaunchConfig, begin: dict[str, Any], shared: bool
) -> int:
    """Run this machine's workers to their end."""
    env = environment(each * nodes.count, threads_each(launch, each), launch.stop_seconds)
    env.update(network(channel.here), SKYTUNE_PROGRESS="lines")
    env.pop(TOKEN, None)
    tail: deque[str] = deque(maxlen=200)
    job.logs.mkdir(parents=True, exist_ok=True)
    first = nodes.rank * each
    code = 1
    with (
        (job.logs / f"output-node-{nodes.rank}.log").open("ab", buffering=0) as record,
        Stopping(job.logs / f".stop-{nodes.rank}", launch.stop_seconds) as stopping,
    ):
        peers = _Peers(channel, stopping, launch.grace_seconds)
        words = agent(job, nodes, each, str(begin["address"]), int(begin["port"]))
        child = start(words, env)
        try:
            follower = Follower(job.logs / f"rank-{first}.log")
            code = pump(
                child, record, tail, follower, peers.check, job.outputs / ".no-result-here", launch.grace_seconds
            )
        except _Ended:
            pass
        finally:
            end_group(child, 0.0 if stopping.at_once else launch.grace_seconds)
        if stopping.asked_by == signal.SIGINT and peers.status != "preempted":
            log.info("interrupted")
        channel.send("ended", code=code, tail=list(tail)[-50:], logs=not shared)
        if not shared:
            names = sorted(path.name for path in job.logs.iterdir() if path.is_file() and path.name[0] != ".")
            channel.send_folder(job.logs, names)
        status = peers.last_word(launch.grace_seconds + launch.stop_seconds)
        if peers.closed is not None and not status:
            raise peers.closed
    if status == "completed":
        log.info("the run is done; node 0 has the results")
        return EXIT_OK
    if status == "preempted":
        log.info("the run was told to end, and is saved; the same commands go on")
        return EXIT_PREEMPTED
    own = sorted(job.read_errors().items())
    mine = [error for number, error in own if first <= number < first + each]
    reason = f": {mine[0].message.splitlines()[0]}" if mine and mine[0].message else ""
    raise UserError(f"the run failed{reason}; node 0 says more")
