"""Callbacks that tests put into workers: one that writes down which rows reach the model, one that ends the run."""

import json
import os
import signal
from pathlib import Path
from typing import Any


class Rows:
    """Appends to `seen-<rank>.jsonl` in the job directory what the model was given in every training step: the tokens
    of each row without padding. A row that only fills up a process's share comes up again."""

    def on_run_start(self, run: Any) -> None:
        path = Path(run.job.root, f"seen-{run.world.rank}.jsonl")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.rows: list[list[int]] = []
        run.model.register_forward_pre_hook(self._look, with_kwargs=True)

    def on_step_end(self, run: Any) -> None:
        # One write a line: a kill leaves whole lines behind.
        os.write(self.file, (json.dumps({"step": run.step, "rows": self.rows}) + "\n").encode())
        self.rows = []

    def _look(self, model: Any, _: Any, given: dict[str, Any]) -> None:
        if model.training:
            for tokens, mask in zip(given["input_ids"].tolist(), given["attention_mask"].tolist(), strict=True):
                self.rows.append(tokens[: sum(mask)])


class End:
    """Ends the run after a step, as `SKYTUNE_TEST_END` says: `30 kill`, `30 term`, `30 file`."""

    def on_step_end(self, run: Any) -> None:
        step, _, how = os.environ.get("SKYTUNE_TEST_END", "").partition(" ")
        if not step or run.step != int(step):
            return
        if how == "kill":
            os.killpg(0, signal.SIGKILL)
        elif how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif run.world.main:
            Path(run.job.root, "preempt").touch()


class Sick:
    """Spoils the loss in the steps `loss` and the gradients in the steps `gradient` (both from 0), and writes down the
    sum of each weight's numbers after every step, in `weights.jsonl`."""

    def __init__(self, loss: list[int] = [], gradient: list[int] = []) -> None:  # noqa: B006
        self.loss, self.gradient = loss, gradient

    def on_run_start(self, run: Any) -> None:
        self.run = run
        run.model.register_forward_hook(self._spoil, with_kwargs=True)

    def on_step_end(self, run: Any) -> None:
        sums = {}
        for name, weight in run.model.state_dict().items():
            full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            sums[name] = float(full.double().sum())
        if run.world.main:
            with Path(run.job.root, "weights.jsonl").open("a") as file:
                file.write(json.dumps([run.step, sums]) + "\n")

    def _spoil(self, model: Any, _: Any, given: Any, output: Any) -> Any:
        if model.training and self.run.step in self.loss:
            output["loss"] = output["loss"] * float("nan")
        elif model.training and self.run.step in self.gradient:
            # Its value is 0, its derivative is not a number.
            output["loss"] = output["loss"] + (output["loss"] - output["loss"].detach()).sqrt()
        return output
