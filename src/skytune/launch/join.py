"""The side of every machine but node 0: it joins a run, gets its inputs, runs its workers, and sends their logs.

    SKYTUNE_JOIN_TOKEN=... python -m skytune.training join 10.0.0.1:29511

Needs no ZenML. Where node 0's job directory lies on a file system that this machine shares, it is used as it is; else
its inputs are copied to `${SKYTUNE_HOME:-~/.cache/skytune}/joined/<run key>`.
"""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Preempted, UserError
from ..config.folders import home
from ..config.scrubbing import log_plainly, scrub
from ..job import JobDir
from .channel import Channel, Closed
from .gathering import HANDSHAKE_SECONDS, PULSE_SECONDS, TOKEN
from .machine import about
from .nodes import PORT, Nodes
from .part import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_PREEMPTED, train

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


def main(words: list[str]) -> int:
    """Run `join ADDRESS[:PORT]`; return the exit code: 0 done, 1 error, 75 preempted, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m skytune.training join", description="Join a run as another node.")
    parser.add_argument("place", metavar="ADDRESS[:PORT]", help="where node 0 waits, as it says")
    parser.add_argument("--node-rank", type=int, help="this machine's number, from 1; left out, node 0 chooses")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for node 0 (default 300)")
    parser.add_argument("--secrets-on-stdin", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    log_plainly()
    try:
        if given.secrets_on_stdin:
            os.environ.update(json.loads(sys.stdin.readline()))
            threading.Thread(target=_end_with_ssh, daemon=True, name="ssh").start()
        if not given.timeout > 0:  # not a number neither: it would never be over
            raise UserError(f"--timeout={given.timeout:g}: must be a number of seconds above 0")
        if given.node_rank is not None and given.node_rank < 1:
            raise UserError(f"--node-rank={given.node_rank}: must be at least 1; node 0 runs src/run.py")
        address, port = split(given.place)
        return join(address, port, rank=given.node_rank, timeout=given.timeout)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Preempted as error:
        print(f"preempted: {error}", file=sys.stderr)
        return EXIT_PREEMPTED
    except UserError as error:
        print(f"error: {scrub(str(error))}", file=sys.stderr)
        return EXIT_ERROR


def split(place: str) -> tuple[str, int]:
    """Return address and port; an IPv6 address with a port stands in brackets.

    Raises:
        UserError: there is no address, or the port is none.
    """
    if place.startswith("["):
        address, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") == 1:
        address, _, port = place.partition(":")
    else:
        address, port = place, ""
    if not address or (port and not (re.fullmatch("[0-9]{1,9}", port) and 0 < int(port) <= 65535)):
        raise UserError(f"{place}: write ADDRESS:PORT, with a port between 1 and 65535")
    return address, int(port or PORT)


def join(address: str, port: int | None, *, rank: int | None, timeout: float) -> int:
    """Join the run whose node 0 waits there (on the usual port if not given); return the exit code when it has ended.

    Raises:
        UserError: node 0 is not there in time, refuses this machine, is lost, or the run failed.
    """
    token = os.environ.get(TOKEN)
    if not token:
        raise UserError(f"{TOKEN} is not set: node 0 prints it with its command, or has it from its own environment")
    port = port or PORT
    channel = _reach(address, port, token, timeout)
    try:
        return _take_part(channel, rank)
    except Closed as error:
        why = "has not been heard of" if str(error) == "silence" else f"is gone ({error})"
        raise UserError(f"node 0 ({address}:{port}) {why}: this machine's workers were ended") from error
    finally:
        channel.close()


def _reach(address: str, port: int, token: str, timeout: float) -> Channel:
    """Connect to node 0, which may not listen yet: it prepares the data first."""
    until, said = time.monotonic() + timeout, False
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=min(HANDSHAKE_SECONDS, timeout))
        except OSError as error:
            if time.monotonic() + AGAIN_SECONDS > until:
                raise UserError(
                    f"no node 0 at {address}:{port} within {timeout:g} s ({error.strerror or error})"
                ) from error
            if not said:
                log.info("waiting for node 0 at %s:%d, at most %g s", address, port, timeout)
                said = True
            time.sleep(AGAIN_SECONDS)
            continue
        channel = Channel(connection, HANDSHAKE_SECONDS)
        try:
            channel.prove(token)
        except BaseException:
            channel.close()
            raise
        return channel


def _take_part(channel: Channel, rank: int | None) -> int:
    channel.send("hello", rank=rank, **about())
    given = channel.expect("welcome", "end")
    if given["kind"] == "end":
        log.info("node 0 had nothing to train: it has the results already, or says why not")
        return EXIT_OK
    silence, stop_pulse = 3 * HANDSHAKE_SECONDS, threading.Event()
    channel.patience(silence)
    threading.Thread(target=_pulse, args=(channel, stop_pulse), daemon=True, name="pulse").start()
    nodes = Nodes(int(given["nodes"]), int(given["rank"]))
    with contextlib.ExitStack() as stack:
        stack.callback(stop_pulse.set)
        shared = _is_here(given)
        channel.send("found", shared=shared)
        if shared:
            job = JobDir(given["folder"])
        else:
            job = stack.enter_context(_copied(channel, str(given["run_key"])))
        launch = job.job.config.launch
        log.info(
            "node %d of %d of the run %s (%s), waiting for all to be here",
            nodes.rank,
            nodes.count,
            given["run_key"],
            "its folder is shared" if shared else f"its inputs were copied to {job.root}",
        )
        channel.patience(launch.silence_seconds)
        channel.send("ready")
        begin = channel.expect("go", "end")
        if begin["kind"] == "end":
            raise UserError("the run ended before training began: node 0 says why")
        log.info("training begins: %d processes here", given["each"])
        return train(channel, job, nodes, int(given["each"]), launch, begin, shared)


def _is_here(given: dict[str, Any]) -> bool:
    """Whether node 0's very folder is seen from this machine: it has just written a random number there."""
    try:
        return (Path(given["folder"]) / ".nodes").read_text() == given["nonce"]
    except OSError:
        return False


@contextlib.contextmanager
def _copied(channel: Channel, run_key: str) -> Any:
    """Receive the job's inputs into a folder of this machine's, which goes again when the run has ended."""
    folder = home() / "joined" / Path(run_key).name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"this machine takes part in the run {run_key} already ({folder})") from None
        try:
            shutil.rmtree(folder)
            channel.receive_folder(folder)
            channel.receive_folder(folder / "own")
            job = JobDir(folder)
            job.write_job(replace(job.job, paths=[str(folder / "own")]))
            yield job
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _pulse(channel: Channel, stop: threading.Event) -> None:
    while not stop.wait(PULSE_SECONDS):
        try:
            channel.send("pulse")
        except Closed:
            return


def _end_with_ssh() -> None:
    """Started over SSH, this process is told to end when the connection does."""
    while sys.stdin.readline():
        pass
    time.sleep(2 * HANDSHAKE_SECONDS)  # node 0 has closed it in order, and this process is about to end by itself
    os.kill(os.getpid(), signal.SIGTERM)
