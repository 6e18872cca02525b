"""DistributedDataParallel with the optimizer's state cut up: `torch.distributed.optim.ZeroRedundancyOptimizer`.

Every process has all weights and gradients, and the optimizer's state of some parameters. It updates those and sends
them to the others (Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stage 1).
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...config import OptimizerConfig, RunConfig
from ..checkpoint.optimizer import flatten_state, restore_optimizer
from ..checkpoint.shards import Stored
from ..schedule import optimizer_over, parameter_groups
from .base import own_group
from .replicated import Replicated

if TYPE_CHECKING:
    from ..devices import World


class OptimizerSharding(Replicated):
    """See the module."""

    name = "optimizer_sharding"
    sharded = True
    together = True
    own_files = ("optimizer",)

    def __init__(self, config: RunConfig, world: "World") -> None:
        super().__init__(config, world)
        self.owns_group = own_group(world)

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        groups = parameter_groups(self.model, config.weight_decay)
        self.optimizer = ZeroRedundancyOptimizer(
            groups,
            optimizer_class=partial(_build, config),
            parameters_as_bucket_view=True,  # one message a process instead of one a parameter
            lr=config.lr,
        )
        return self.optimizer

    @property
    def local(self) -> torch.optim.Optimizer:
        """The optimizer over this process's share of the parameters."""
        inner: torch.optim.Optimizer = self.optimizer.optim
        return inner

    def _numbers(self) -> list[int]:
        """Return the number that each parameter of the local optimizer has among all parameters."""
        where = {id(parameter): number for number, parameter in enumerate(_parameters(self.optimizer))}
        return [where[id(parameter)] for parameter in _parameters(self.local)]

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        numbers, state = self._numbers(), self.local.state_dict()
        count, groups = 0, []
        for own, group in zip(state["param_groups"], self.optimizer.param_groups, strict=True):
            members = list(range(count, count + len(group["params"])))
            groups.append({**own, "params": members})
            count += len(members)
        whole = {
            "state": {numbers[number]: item for number, item in state["state"].items()},
            "param_groups": groups,
        }
        return flatten_state(type(self.local).__name__, whole, [list(p.shape) for p in _parameters(self.optimizer)])

    def load_optimizer(self, tensors: Stored, values: Mapping[str, Any]) -> None:
        numbers = self._numbers()
        local = {number: position for position, number in enumerate(numbers)}
        count, members = 0, []
        for group in self.local.param_groups:
            members.append(list(range(count, count + len(group["params"]))))
            count += len(group["params"])
        state = [[local[number], item] for number, item in values["state"]["dict"] if number in local]
        own = {
            **values,
            "params": members,
            "shapes": [values["shapes"][number] for number in numbers if number < len(values["shapes"])],
            "state": {"dict": state},
        }
        restore_optimizer(self.local, tensors, own)
        for ours, theirs in zip(self.optimizer.param_groups, self.local.param_groups, strict=True):
            ours.update({key: value for key, value in theirs.items() if key != "params"})


def _build(config: OptimizerConfig, groups: list[dict[str, Any]], **_: Any) -> torch.optim.Optimizer:
    return optimizer_over(config, groups)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
