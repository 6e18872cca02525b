"""What a checkpoint holds of a run: everything that another process needs to go on exactly, taken and put back.

model, optimizer, ema        tensors; random numbers are functions of (seed, step, rank) and need no file
optimizer, history           documents
state                        small JSON in the manifest: position, totals, best metrics, callbacks
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .callbacks import Callbacks, Run
from .checkpoint.shards import load_document, open_tensors
from .checkpoint.store import Found
from .checkpoint.writer import Tensors
from .ema import Ema
from .recording import BestWeights, History

if TYPE_CHECKING:
    from .strategy import Strategy

TOTALS = (
    "step",
    "rows",
    "tokens",
    "epoch",
    "metrics",
    "train_seconds",
    "data_seconds",
    "flops",
    "skipped",
    "stop",
    "out_of_memory",
    "validation_owed",
)
"""Fields of `Run` that go on from where they stood."""


@dataclass
class Snapshot:
    """The parts of a run that have a state."""

    strategy: "Strategy"
    best: BestWeights
    history: History
    callbacks: Callbacks
    ema: Ema | None

    def take(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors where they are and JSON values, by file (collective where the strategy's state is).

        The optimizer has tensors of its own only after a step.
        """
        weights, (tensors, values) = self.strategy.state(), self.strategy.optimizer_state()
        files = {"model": weights, "optimizer": tensors}
        if self.ema is not None:
            files["ema"] = self.ema.tensors()
        return files, {"optimizer": values, "history": self.history.records}

    def state(self, run: Run) -> dict[str, Any]:
        """Return what goes into the manifest."""
        return {
            **{name: getattr(run, name) for name in TOTALS},
            "micro_batch": run.micro_batch,
            "ranking": self.best.ranking,
            "callbacks": self.callbacks.state(),
            "spent": run.spent(),
            "scaling": self.strategy.scaling(),
        }

    def restore(self, run: Run, found: Found) -> None:
        """Put everything back.

        Raises:
            UserError: the checkpoint does not fit.
        """
        self.strategy.load(open_tensors(found, "model"))
        self.strategy.load_optimizer(open_tensors(found, "optimizer"), load_document(found, "optimizer"))
        if self.ema is not None:
            self.ema.restore(open_tensors(found, "ema"))
        state = found.manifest.state
        self.strategy.load_scaling(state.get("scaling"))
        for name in TOTALS:  # a version before this one may not have known all of them
            setattr(run, name, state.get(name, getattr(run, name)))
        run.resumed_from, run.earlier = run.step, state.get("spent", {})
        self.best.ranking = [(value, step) for value, step in state.get("ranking", [])]
        self.history.restore(run, load_document(found, "history"))
        self.callbacks.load_state(state.get("callbacks", {}))
        if run.config.batch.auto and run.out_of_memory:
            run.micro_batch = min(run.micro_batch, state["micro_batch"])
