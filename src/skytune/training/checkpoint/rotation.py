"""Which checkpoints go when a newer one is complete."""

from collections.abc import Sequence
from functools import cache

from .store import Store


def rotate(store: Store, keep: int, *, newest: int | None = None, best: Sequence[int] = ()) -> list[int]:
    """Delete old checkpoints beyond the `keep` newest complete ones; return their steps.

    Never deleted: the best one that is complete, `newest`, and anything of a later step (another machine's, or of a
    time line that this run went back from).

    Args:
        keep: at least 1.
        newest: step of the one that is known to be valid, normally the one just written; found by reading where it is
            not given.
        best: steps from the best metric on: the save of the very best one may have failed.
    """
    assert keep >= 1, keep
    if newest is None:
        found = store.newest()
        if found is None:
            return []
        newest = found.manifest.step
    kept, deleted, steps = 1, [], store.steps()
    complete = cache(lambda step: step not in store.broken and not store.check(step, content=False).problems)
    wanted = next((step for step in best if step == newest or (step in steps and complete(step))), None)
    for step in reversed([step for step in steps if step < newest]):
        if kept < keep and complete(step):
            kept += 1
        elif step != wanted:  # a broken one goes too: a newer one is valid
            store.delete(step)
            deleted.append(step)
    return sorted(deleted)
