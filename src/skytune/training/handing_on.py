"""Which weights a run hands on: the best of its checkpoints, where those are not the ones it ends with."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..config import NotReachable, UserError
from .checkpoint.reading import fetch, open_tensors
from .checkpoint.spreading import fetch_everywhere
from .checkpoint.store import Found
from .checkpointing import Checkpoints
from .together import main_does

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class HandingOn:
    """Finds the best weights among a run's checkpoints and gets them.

    Args:
        checkpoints: the run's; where the best weights cannot be had, `checkpoints.failure` says why.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.fetched: Found | None = None

    def wanted(self, present: int) -> int | None:
        """Return the step whose weights are to be handed on where that is not the `present` one; the same on every
        process (collective). Where the best ones cannot be had, that is told, and the next best are taken."""
        if not self.checkpoints.snapshot.best.keep:
            return None
        step = main_does(self.checkpoints.world, lambda: self._obtainable(present))
        return step if step != present else None

    def _obtainable(self, present: int) -> int:
        """Return the best step whose weights can be had (rank 0)."""
        best = self.checkpoints.snapshot.best
        while best.best is not None and (step := best.best["step"]) != present:
            try:
                self.fetched = fetch(self.checkpoints.store, step, self.checkpoints.cache)
                return int(step)
            except UserError as error:
                self.checkpoints.failure = f"the best weights, of step {step}, cannot be handed on: {error}"
                log.warning("BEST WEIGHTS LOST: %s", self.checkpoints.failure)
                # A store that is away is not asked for the next best, too.
                others = best.steps[1:] if isinstance(error, NotReachable) else [step]
                for other in {step, *others} - {present}:
                    best.forget(other)
        return present

    def weights(self, step: int) -> Mapping[str, "torch.Tensor"]:
        """Return the weights that one checkpoint hands on: the averaged ones where there are any (collective)."""
        checkpoints = self.checkpoints
        found = fetch_everywhere(checkpoints.world, checkpoints.store, step, checkpoints.cache, self.fetched)
        model = open_tensors(found, "model")
        return model if checkpoints.snapshot.ema is None else model.under(open_tensors(found, "ema"))
