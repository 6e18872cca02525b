"""Who may write a run's checkpoints: a small object in the store with a heartbeat, so that two launches of the same run
key do not interleave.

Atomic where the store can compare and write in one go (`file://`, S3, the Hub); `Lease.atomic` says so. The same launch
and a dead process of this machine are taken over at once, everybody else once the object in the store has not changed
for as long as its owner promised, by the clock of whoever watches it: clocks of machines need not agree.
"""

import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..common.json import load_json
from ..common.processes import alive, machine, started
from ..config import NotReachable, UserError
from .backends.base import S3Backend
from .manifest import LEASE
from .retry import causes, http_status
from .store import Store

QUICK_SECONDS = 10.0
"""How long signs of life and the release try a store that is away."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a lease."""

    launch: str
    """One launch may have several lives: a machine that died and the one that came after it."""

    host: str
    """Host name, for people."""

    machine: str
    """Host, boot and process namespace: process ids mean something only within it."""

    pid: int
    started: str
    """When the process began, in the kernel's count: process ids are used again."""

    token: str
    """Of this very acquisition."""

    heartbeat: float
    """Seconds since the epoch of the last sign of life, by the owner's clock: never compared, another in each."""

    expiry_seconds: float
    """The lease is void after so long a silence."""


class LeaseHeld(UserError):
    """Another launch writes this run's checkpoints; `wait_seconds` is how long until its lease is void if it died."""

    def __init__(self, location: str, owner: Owner, wait_seconds: float) -> None:
        super().__init__(
            f"{location}: is being written by the launch {owner.launch} (process {owner.pid} on {owner.host}); stop "
            f"it, give this run another name, or wait {math.ceil(wait_seconds)} s if it is dead"
        )
        self.owner, self.wait_seconds = owner, wait_seconds


class Lease:
    """A lease that is held: renewed by a thread of its own until `release`.

    Saves wait for a store that is away as long as it was told to; the thread, which comes back soon anyway, and the
    release, which the lease's expiry makes good, do not.
    """

    def __init__(self, store: Store, owner: Owner, *, atomic: bool, heartbeat_seconds: float, renewed: float) -> None:
        self.store, self.owner, self.atomic = store, owner, atomic
        self.lost: str | None = None
        """Who took the lease away, None while it is ours."""
        self._renewed = renewed
        self._path = f"{store.run_key}/{LEASE}"
        patience = min(store.retry.deadline_seconds, QUICK_SECONDS)
        self._quick = Store(store.backend, store.run_key, replace(store.retry, deadline_seconds=patience, quiet=True))
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._beat, args=(heartbeat_seconds,), daemon=True, name="checkpoint-lease"
        )
        self._thread.start()

    def check(self, look: bool = False, *, quick: bool = False) -> None:
        """Make sure that the lease is still ours: to be called before something is written.

        Args:
            look: ask the store; otherwise only where there was no sign of life for so long that others may have come.
            quick: do not wait long for a store that is away.

        Raises:
            UserError: another launch took it, because it is a later life of the same launch or this process was silent
                (`lost` says who); or the store is away.
        """
        store = self._quick if quick else self.store
        if self.lost is None and _clock() - self._renewed > self.owner.expiry_seconds:
            self.renew(store)  # this machine slept, or the store was away
        elif self.lost is None and look:
            self._poll(store)
        if self.lost is not None:
            raise UserError(
                f"{self.store.location}: {self.lost} has taken over this run; this process no longer writes"
            )

    def renew(self, store: Store | None = None) -> None:
        """Give a sign of life; notice when another launch has taken over."""
        store = store or self.store
        for _ in range(3):
            version = self._poll(store)
            if self.lost is not None:
                return
            fresh, begun = replace(self.owner, heartbeat=time.time()), _clock()
            if _swap(store, self._path, _dump(fresh), version) is not None:
                self.owner, self._renewed = fresh, begun
                return

    def _poll(self, store: Store) -> Any:
        """Look who holds the lease; return the mark of its version."""
        data, version = store.with_retry(lambda: store.backend.read_version(self._path), "reading the lease")
        there = _parse(data)
        if data is None:  # nobody deletes a lease but who holds it: another launch came and went meanwhile
            self.lost = "a launch that has ended since"
        elif there is not None and there.token != self.owner.token:
            self.lost = f"the launch {there.launch} on {there.host}"
        return version

    def release(self) -> None:
        """Stop renewing and let others in at once; a lease that was lost is left alone."""
        self._end.set()
        self._thread.join(timeout=5)
        store = self._quick
        try:
            data, _ = store.with_retry(lambda: store.backend.read_version(self._path), "reading the lease")
            there = _parse(data)
            if there is not None and there.token == self.owner.token:
                store.with_retry(lambda: store.backend.delete(self._path), "releasing the lease")
        except UserError:
            pass  # it expires by itself

    def _beat(self, seconds: float) -> None:
        while not self._end.wait(seconds) and self.lost is None:
            try:
                self.renew(self._quick)
            except UserError:
                continue  # a store that is away for a while; saves report it


def acquire(
    store: Store,
    launch: str,
    *,
    expiry_seconds: float | None = None,
    heartbeat_seconds: float | None = None,
    wait_seconds: float = 0.0,
    say: Callable[[str], None] | None = None,
) -> Lease:
    """Take the run's lease.

    Args:
        launch: id of this launch; a later life of the same launch takes over at once.
        expiry_seconds: silence after which others may take it; empty means four heartbeats.
        heartbeat_seconds: how often a sign of life is given; empty means what suits the store.
        wait_seconds: how long to wait for another launch's lease to expire or end.
        say: told once that and for how long this waits.

    Raises:
        LeaseHeld: another launch holds it, and still did after the wait.
        UserError: the store cannot be written.
    """
    backend, path = store.backend, f"{store.run_key}/{LEASE}"
    beat = heartbeat_seconds or backend.heartbeat_seconds
    me = Owner(
        launch=launch,
        host=socket.gethostname(),
        machine=machine(),
        pid=os.getpid(),
        started=started(os.getpid()) or "",
        token=uuid.uuid4().hex,
        heartbeat=time.time(),
        expiry_seconds=expiry_seconds or 4 * beat,
    )
    deadline, announced, conflicts = time.monotonic() + wait_seconds, False, 0
    seen, since = b"", time.monotonic()
    while True:
        data, version = store.with_retry(lambda: backend.read_version(path), "reading the lease")
        there, now = _parse(data), time.monotonic()
        if data != seen:
            seen, since = data or b"", now
        if there is not None and there.token != me.token and not _free(there, launch):
            wait = since + there.expiry_seconds - now
        else:
            wait = 0.0
        if wait > 0 and there is not None:
            if now > deadline:
                raise LeaseHeld(store.location, there, wait)
            if say is not None and not announced:
                announced = True
                say(str(LeaseHeld(store.location, there, wait)))
            time.sleep(min(wait, 1.0, beat, max(0.05, deadline - time.monotonic())))
            continue
        me, begun = replace(me, heartbeat=time.time()), _clock()
        atomic = _swap(store, path, _dump(me), version)
        if atomic is None:
            conflicts += 1
            if conflicts > 20:
                raise NotReachable(f"{store.location}: {path} keeps changing; is the store's clock or cache at fault?")
            time.sleep(0.05)
            continue  # somebody was faster, or a lost answer: look who
        return Lease(store, me, atomic=atomic, heartbeat_seconds=beat, renewed=begun)


def _free(owner: Owner, launch: str) -> bool:
    """Whether a lease may be taken at once: by a later life of the same launch, or because its process is dead."""
    return owner.launch == launch or (owner.machine == machine() and not alive(owner.pid, owner.started))


def _clock() -> float:
    """Return seconds that go on while this machine sleeps, whatever its clock is set to."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _swap(store: Store, path: str, data: bytes, version: Any) -> bool | None:
    """Return True when written atomically, False when written without that promise, None when somebody was faster."""
    backend = store.backend
    try:
        if not store.with_retry(lambda: backend.swap(path, data, version), "taking the lease"):
            return None
    except UserError as error:
        if not any(http_status(cause) == 501 for cause in causes(error)):
            raise
        store.with_retry(lambda: backend.write(path, data), "taking the lease")  # the store has no conditional writes
        return False
    # Some stores that speak S3 ignore the condition: then a second exclusive creation succeeds, too.
    asks = version is None and isinstance(backend, S3Backend)
    return not (asks and store.with_retry(lambda: backend.swap(path, data, None), "trying the lease"))


def _dump(owner: Owner) -> bytes:
    return json.dumps(asdict(owner), indent=1).encode()


def _parse(data: bytes | None) -> Owner | None:
    """Return the owner; None where there is none, or nothing readable."""
    try:
        owner = None if data is None else Owner(**load_json(data, dict))
        return owner if owner is None or 0 <= owner.expiry_seconds < math.inf else None
    except (ValueError, TypeError, RecursionError):
        return None
