"""Another machine than node 0: it waits for node 0's jobs, runs its share of their workers, and ends as node 0 does.

Needs no ZenML. Where it shares no folder with node 0, a job comes to `<SKYTUNE_HOME>/joined/<run key>`, and goes again
when it has ended. Code never comes from another machine: what a job names must be named by this
machine's own command, and is imported from here.

    python bootstrap.py skytune.launch.multinode.node    as `hosts` starts it: words go through the pipes of its `ssh`
"""

import io
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import IO, Any

from ...common.exit_codes import EXIT_ERROR, EXIT_OK, EXIT_PREEMPTED
from ...common.paths import UnsafeNameError, check_name
from ...config import LaunchConfig, Preempted, RunConfig, UserError, from_dict, secrets, to_dict
from ...config.folders import home
from ...config.targets import user_paths
from ...config.trust import wishes
from ...job import JobDir
from ..compatibility import about, differs, network, own_address
from ..gpus import threads_each
from ..local import agent
from ..log_streaming import Follower, pump
from ..processes import end_group, environment, start
from ..signals import Stopping
from .hosts import read_lines, write_line
from .presence import Mailbox, Presence
from .share import Share
from .topology import Nodes

log = logging.getLogger("skytune.launch.multinode.node")  # its name is another where it is run as a program


def serve(config: RunConfig, nodes: Nodes) -> int:
    """Take part in what node 0 runs until it ends; return its exit code.

    Raises:
        UserError: node 0 does not come, is unlike this machine, or is lost.
        Preempted: this machine was told to end, and node 0 did not come to an end.
    """
    config = secrets.mask_secrets(config)
    return WorkerNode(Share(config, nodes), nodes, config.launch, config).serve()


def foreign(job: RunConfig, own: RunConfig) -> list[str]:
    """Return the keys of a job that have something run or sent which this machine's own command does not name, and the
    variables whose secrets it wants beside."""
    ours, wanted = to_dict(own), to_dict(job)
    known = wishes(ours)
    strange = [key for key, value in wishes(wanted).items() if known.get(key) != value]
    return sorted(strange + [name for name in secrets.named(wanted) if name not in secrets.named(ours)])


class _Ended(Exception):
    """Node 0's job has ended, badly or long ago."""


class WorkerNode:
    """This machine, among others."""

    def __init__(self, mailbox: Mailbox, nodes: Nodes, launch: LaunchConfig, known: RunConfig | None) -> None:
        """Begin.

        Args:
            known: this machine's own command; None where node 0 has started this process itself.
        """
        self.mailbox, self.nodes, self.launch, self.known = mailbox, nodes, launch, known
        self.presence = Presence(mailbox, nodes.rank, [0], launch.timeouts.heartbeat, about())
        self.leader: Any = None

    def serve(self) -> int:
        """See `serve`."""
        code, done = EXIT_ERROR, []
        try:
            self._find()
            while "exit" not in (lead := self._lead()):
                mark = self._job().get("mark")
                if mark is not None and mark not in done and "status" not in self._job():
                    done.append(mark)
                    self._take_part(mark)
                self.presence.wait()
            code = lead["exit"] if lead["exit"] in range(256) else EXIT_ERROR
            if code == EXIT_ERROR:
                raise UserError(f"the run failed: {self.presence.host(0)} says why")
            if code == EXIT_OK:
                log.info("the run is done; node 0 has the results" if done else "node 0 had nothing to train")
            else:
                log.info("the run ended with exit code %d: %s says why", code, self.presence.host(0))
            return int(code)
        except (Preempted, KeyboardInterrupt):
            code = EXIT_PREEMPTED
            raise
        finally:
            self.presence.end(exit=code)

    def _find(self) -> None:
        """Wait for node 0."""
        until = time.monotonic() + self.launch.timeouts.start
        log.info("node %d of %d, waiting for node 0", self.nodes.rank, self.nodes.count)
        while not (lead := self.presence.of(0)):
            self.presence.check()
            if time.monotonic() > until:
                raise UserError(
                    f"launch.nodes={self.nodes.count}: node 0 did not come within {self.launch.timeouts.start:g}"
                    f" s (launch.timeouts.start); all machines must see {self.mailbox.where}"
                )
            self.presence.wait()
        self.leader = lead.get("attempt")
        self.presence.say(leader=self.leader)
        if why := differs(self.presence.about, lead):
            host = self.presence.host(0)
            raise UserError(f"launch.nodes={self.nodes.count}: this machine {why}, which is {host}")

    def _lead(self) -> dict[str, Any]:
        """Return node 0's word.

        Raises:
            UserError: it is gone, or this machine cannot be heard.
        """
        lead, why = self.presence.of(0), self.presence.lost(0)
        if lead.get("attempt") != self.leader:
            why = "has begun anew"
        if why:
            raise UserError(f"{self.presence.host(0)} {why}: this machine's workers were ended")
        self.presence.check()
        return lead

    def _job(self, mark: Any = None) -> dict[str, Any]:
        """Return what node 0 says of its job (of this one, if given); empty where it says nothing."""
        job = self._lead().get("job")
        return job if isinstance(job, dict) and mark in (None, job.get("mark")) else {}

    def _take_part(self, mark: Any) -> None:
        message = self._job(mark)
        each, address, port = (message.get(name) for name in ("each", "address", "port"))
        try:
            key = check_name(message.get("run_key"))
        except UnsafeNameError as error:
            raise UserError(f"node 0's word: {error}") from None
        if (
            "/" in key
            or not isinstance(address, str)
            or not (isinstance(each, int) and 0 < each <= 1024)
            or not (isinstance(port, int) and 0 < port < 65536)
        ):
            raise UserError(f"node 0's word makes no sense: {str(message)[:200]}")
        job = JobDir(home() / ("joined" if self.mailbox.private else "runs") / key)
        try:
            if self.mailbox.private:
                shutil.rmtree(job.outputs, ignore_errors=True)
                job.logs.mkdir(parents=True)
                self.mailbox.receive(job)
            found = job.job
            if self.known is not None and (strange := foreign(found.config, self.known)):
                raise UserError(
                    f"node 0's job wants {', '.join(strange)}, which this machine's command does not say: start the "
                    "same command on all machines"
                )
            if self.mailbox.private and self.known is not None:
                job.write_job(replace(found, paths=user_paths()))
            log.info("node %d of %d of the run %s (%s)", self.nodes.rank, self.nodes.count, key, job.root)
            self._train(job, found.config.launch, mark, each, address, port)
        finally:
            if self.mailbox.private:
                shutil.rmtree(job.root, ignore_errors=True)

    def _train(self, job: JobDir, launch: LaunchConfig, mark: Any, each: int, address: str, port: int) -> None:
        """Run this machine's workers to their end."""
        rank, until = self.nodes.rank, float("inf")
        env = environment(each * self.nodes.count, threads_each(launch, each), launch.timeouts.stop)
        env.update(network(own_address(address)), SKYTUNE_PROGRESS="lines")
        tail: deque[str] = deque(maxlen=200)
        job.logs.mkdir(parents=True, exist_ok=True)
        with (
            (job.logs / f"output-node-{rank}.log").open("ab", buffering=0) as record,
            Stopping(job.logs / f".stop-{rank}", launch.timeouts.stop) as stopping,
        ):

            def check() -> None:
                nonlocal until
                stopping.check()
                status = self._job(mark).get("status", "none") if self._job(mark) else "failed"
                if status in ("completed", "preempted"):  # the workers here are at their end, too
                    until = min(until, time.monotonic() + launch.timeouts.kill)
                if status == "failed" or time.monotonic() > until:
                    raise _Ended
                if stopping.asked_by is not None and not stop:
                    stop.append(True)
                    self.presence.say(stop=True)

            stop: list[bool] = []
            self.presence.say(mark=mark, left=None, stop=False)
            child, code = start(agent(job, self.nodes, each, address, port), env), EXIT_ERROR
            try:
                follower = Follower(job.logs / f"rank-{rank * each}.log")
                code = pump(child, record, tail, follower, check, job.outputs / ".not-here", launch.timeouts.kill)
            except _Ended:
                pass
            finally:
                end_group(child, 0.0 if stopping.at_once else launch.timeouts.kill)
            self.mailbox.send_logs(job, rank)
            self.presence.say(left=code)
            while (now := self._job(mark)) and "collected" not in now:  # the logs may lie here still
                stopping.check()
                self.presence.wait()


class Wire(Mailbox):
    """The other end: the pipes of this host's `ssh`."""

    where, private = "ssh from node 0", True

    def __init__(self, incoming: Iterable[bytes], outgoing: IO[bytes]) -> None:
        self._outgoing, self._words = outgoing, dict[int, bytes]()
        threading.Thread(target=read_lines, args=(incoming, self._words, 0), daemon=True, name="ssh").start()

    def write(self, rank: int, data: bytes) -> None:
        write_line(self._outgoing, data)

    def read(self, rank: int) -> bytes | None:
        return self._words.get(rank)


def main() -> int:
    """Be a host; return the exit code: node 0's."""
    from ...config.scrubbing import log_plainly, scrub

    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever anybody prints goes to node 0's record, words alone through this pipe
    log_plainly()
    incoming = io.FileIO(0)  # at the end of Python nobody may hold a buffer's lock
    given: dict[str, Any] = json.loads(incoming.readline())
    os.environ.update(given["environ"])
    launch = from_dict(LaunchConfig, given["launch"], "launch")
    nodes = Nodes(launch.nodes or 1, launch.node_rank or 0)
    try:
        return WorkerNode(Wire(incoming, outgoing), nodes, launch, None).serve()
    except (KeyboardInterrupt, Preempted) as error:
        print(f"preempted: {error}", file=sys.stderr)
        return EXIT_PREEMPTED
    except UserError as error:
        print(f"error: {scrub(str(error))}", file=sys.stderr)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
