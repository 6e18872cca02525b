"""Which worker process failed first, and what is to be said of it."""

import re
import signal

from ..config import UserError, WorkerError
from ..job import JobDir

TAIL = 15
"""Lines of a failed rank's log that are shown."""


WAITED = re.compile(r"timed out waiting|collective operation timeout|timed out after \d+ ?ms", re.IGNORECASE)
"""What gloo and NCCL say of a process that did not come to a collective operation."""


def hanging(job: JobDir, processes: int, seconds: float) -> WorkerError | None:
    """Return the error that names the ranks for which the others waited in vain; None where that is not what happened.

    Args:
        processes: how many there were.
        seconds: how long they wait for each other.
    """
    errors = job.read_errors()
    silent = [rank for rank in range(processes) if rank not in errors]
    if not errors or not silent or any(error.user for error in errors.values()):
        return None
    first = min(errors.values(), key=lambda error: error.time)
    if not WAITED.search(first.message):
        return None
    names = " and ".join(map(str, silent))
    return WorkerError(
        f"worker process {names} kept the others waiting for more than {seconds:g} s (launch.timeouts.start), "
        f"and was ended\n{_end_of_log(job, silent[0], [])}"
    )


def failure(job: JobDir, code: int, tail: list[str]) -> UserError:
    """Return the error that says which rank failed first, and why."""
    errors = job.read_errors()
    rank, ended_by = _root_cause(tail, code, sorted(errors, key=lambda r: errors[r].time))
    error = errors.get(rank)
    if error is not None and error.user:
        return UserError(error.message)
    # Died without a word of its own: what was printed last (an import error, a C++ trace).
    more = tail if error is None and rank == 0 else []
    reason = f"{error.type}: {error.message.splitlines()[0]}" if error is not None else _ended(ended_by)
    found = WorkerError(f"worker process {rank} failed: {reason}\n{_end_of_log(job, rank, more)}")
    found.killed = error is None and ended_by == -signal.SIGKILL
    return found


def _end_of_log(job: JobDir, rank: int, more: list[str]) -> str:
    log = job.logs / f"rank-{rank}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    shown = "\n".join(f"  {line}" for line in [*lines, *more][-TAIL:])
    return f"the last lines of {log}:\n{shown}"


def _root_cause(tail: list[str], code: int, failed: list[int]) -> tuple[int, int]:
    """Return (rank, exit code) of the rank to blame.

    Ranks that lose a peer fail too, often within the same moment, so what torchrun happened to see first is not enough:
    a rank that was killed without a word comes first, then the first that left an error file, then torchrun's choice.
    """
    pairs = re.findall(r"\brank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)", "\n".join(tail))
    codes = {int(rank): int(number) for rank, number in pairs}  # the root cause comes last in torchrun's list
    for rank, number in reversed(codes.items()):
        if number < 0 and number != -signal.SIGTERM and rank not in failed:
            return rank, number
    if failed:
        return failed[0], codes.get(failed[0], code)
    if codes:
        rank = int(pairs[-1][0])
        return rank, codes[rank]
    return 0, code


def _ended(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory, or somebody killed it)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}"
    return f"it ended with exit code {code} and left no result"
