"""Cells at once: threads that wait for them, and the end of all of them where one ends everything."""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from typing import Generic, Self, TypeVar

from ..config import Preempted
from ..launch.signals import Stopping
from .cell_runner import INTERRUPTED
from .plan import Planned

T = TypeVar("T", bound=Planned)


class Crew(Generic[T]):
    """Runs cells, at most so many at once: one alone in this very thread, where signals arrive.

    Args:
        run: runs one.
        stop: asks those that run to save and end; called with the reason.
        what: what one is called in a message.
    """

    def __init__(self, run: Callable[[T], None], stop: Callable[[str], None], parallel: int, what: str) -> None:
        self.run, self.stop, self.parallel, self.what = run, stop, parallel, what
        self.pool = ThreadPoolExecutor(parallel, thread_name_prefix=what) if parallel > 1 else None
        self.running: dict[Future[None], T] = {}
        Stopping.last = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what still runs (where something went wrong, it was asked to save and end)."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def start(self, one: T) -> None:
        """Run one, or have it run."""
        if self.pool is not None:
            self.running[self.pool.submit(self.run, one)] = one
            return
        self.run(one)
        if Stopping.last == signal.SIGINT:
            raise KeyboardInterrupt
        if Stopping.last is not None:
            raise Preempted(f"stopped between two {self.what}s; the same command goes on")

    @property
    def busy(self) -> list[T]:
        """Those on their way."""
        return [one for future, one in self.running.items() if not future.done()]

    def wait(self, which: Callable[[T], bool] = lambda _: True) -> None:
        """Wait for all, or for some."""
        self._collect([future for future, one in self.running.items() if which(one)])

    def wait_one(self) -> None:
        """Wait until one has ended."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        self._collect(list(done))

    def wait_free(self) -> None:
        """Wait until another one can begin at once."""
        while len(self.busy) >= self.parallel:
            self.wait_one()

    def _collect(self, futures: Sequence[Future[None]]) -> None:
        try:
            for future in as_completed(futures):
                future.result()
                del self.running[future]
        except BaseException as error:
            for future in self.running:
                future.cancel()
            self.stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"another {self.what} ended everything")
            raise
