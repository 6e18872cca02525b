"""Strategies in which every process has the whole model: threads over GPUs, DistributedDataParallel."""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoint.optimizer_state import flatten_state, restore_optimizer
from ...checkpoint.shards import Stored
from ...config import OptimizerConfig, RunConfig, UserError
from ...models.outputs import logits_of, loss_of
from ..parameter_groups import parameter_groups
from ..schedule import optimizer_over
from .base import Strategy, own_group

if TYPE_CHECKING:
    from ...distributed.context import DistContext

log = logging.getLogger(__name__)


class DataParallelBase(Strategy):
    """DistributedDataParallel: every process has the whole model.

    Gradients are averaged over processes; micro-batch weights carry the factor that makes it a mean over rows.
    """

    name = "ddp"

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.world.size == 1:
            return model
        device = self.world.device
        ddp = torch.nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=self.config.strategy.find_unused_parameters,
            gradient_as_bucket_view=True,
        )
        if not self.config.strategy.find_unused_parameters:
            _lay_out(ddp)
        return ddp

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        ddp = self.module
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            return contextlib.nullcontext()
        context: AbstractContextManager[None] = self._exchanging(ddp) if last else ddp.no_sync()
        return context

    @contextlib.contextmanager
    def _exchanging(self, ddp: torch.nn.parallel.DistributedDataParallel) -> Iterator[None]:
        """DDP waits for the gradients of all weights. Where some did not come it says so in the next step, and only to
        a process whose peers lacked the same ones: others are lost in an exchange that does not fit theirs."""
        yield
        try:
            ddp._check_reducer_finalized()
        except RuntimeError as error:
            trained = [name for name, weight in ddp.module.named_parameters() if weight.requires_grad]
            found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            if found is None or ddp.find_unused_parameters:
                raise
            names = [trained[int(number)] for number in found[1].split()]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise UserError(
                f"strategy={self.name}: weights took no part in the loss of a step on process {self.world.rank} "
                f"({', '.join(names[:4])}{more}); strategy.find_unused_parameters=true looks for such weights"
            ) from error

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """DDP's forward sends rank 0's buffers to all before a step's first micro-batch: here that is
        done on entering, and then left out."""
        ddp = self.module
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            yield
            return
        self.broadcast_buffers()
        before = ddp.require_forward_param_sync
        with ddp.no_sync():
            ddp.require_forward_param_sync = False
            try:
                yield
            finally:
                ddp.require_forward_param_sync = before

    def all_reduce_grads(self) -> None:
        """In buckets, as DDP does it; a weight that only some processes used counts as 0 in the others,
        one that nobody used keeps no gradient."""
        size = self.world.size
        if size == 1:
            return
        weights = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([float(p.grad is not None) for p in weights], device=self.world.device)
        gradients = []
        for weight, users in zip(weights, self.reduce_sum(used).tolist(), strict=True):
            if users:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                gradients.append(weight.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            torch.distributed.all_reduce(flat)
            parts = flat.div_(size).split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


def _lay_out(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Have DDP lay its buckets out for good.

    It does so after its first backward pass, in the order in which gradients came. With more than two processes the
    order of a sum depends on where in a bucket a gradient lies: a run that goes on from a checkpoint would otherwise
    begin with other roundings than the run that was not interrupted.
    """
    model = ddp.module
    ddp.module = _Touched(model)
    # With no input at all, DDP on a GPU fails.
    ddp(torch.zeros((), device=next(model.parameters()).device)).backward()
    ddp.module = model
    model.zero_grad(set_to_none=True)


class _Touched(torch.nn.Module):
    """0, with gradients that come in the reverse order of a model's weights, as those of a forward pass would."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, nothing: torch.Tensor) -> torch.Tensor:
        zeros = [0 * weight.sum().float() for weight in self.model.parameters() if weight.requires_grad]
        return nothing + torch.stack(zeros).sum()


class OptimizerSharding(DataParallelBase):
    """DistributedDataParallel with the optimizer's state cut up: `torch.distributed.optim.ZeroRedundancyOptimizer`.

    Every process has all weights and gradients, and the optimizer's state of some parameters. It updates those and
    sends them to the others (Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stage 1).
    """

    name = "optimizer_sharding"
    sharded = True
    state_is_collective = True
    private_state_files = ("optimizer",)

    def __init__(self, config: RunConfig, world: "DistContext") -> None:
        super().__init__(config, world)
        self.owns_group = own_group(world)

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        groups = parameter_groups(self.model, config)
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
        for ours, inner in zip(self.optimizer.param_groups, self.local.param_groups, strict=True):
            ours.update({key: value for key, value in inner.items() if key != "params"})


def _build(config: OptimizerConfig, groups: list[dict[str, Any]], **_: Any) -> torch.optim.Optimizer:
    return optimizer_over(config, groups)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class DataParallel(Strategy):
    """`nn.DataParallel`: one process, a thread a GPU, the model copied to all GPUs in every step."""

    name = "dp"

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """Nothing is spread."""
        self.name = Strategy.name
        return super().place(model)

    @property
    def devices(self) -> int:
        return self.module.gpus if isinstance(self.module, Threads) else super().devices

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        gpus = torch.cuda.device_count() if self.world.device.type == "cuda" else 0
        if gpus < 2:
            log.warning("strategy=dp: there are no several GPUs to spread over; this is strategy=single")
            self.name = Strategy.name
            return model
        log.warning("strategy=dp: strategy=ddp with launch.num_processes=%d is faster and uses less memory", gpus)
        return Threads(model, gpus)


class Threads(torch.nn.Module):
    """A model whose batch is dealt out to GPUs, with the loss of the whole batch."""

    def __init__(self, model: torch.nn.Module, gpus: int) -> None:
        super().__init__()
        self.gpus = gpus
        self.spread = torch.nn.DataParallel(Counted(model), device_ids=list(range(gpus)))

    def forward(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return `logits` [rows, classes] and, with labels, the mean `loss` over all rows."""
        return joined(self.spread(**tensors))


class Counted(torch.nn.Module):
    """A model that returns its loss together with the rows it is the mean of: GPUs get uneven shares."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return `logits` and, with labels, `loss` [1] and `rows` [1]."""
        output = self.model(**tensors)
        logits = logits_of(output)
        if "labels" not in tensors:
            return {"logits": logits}
        rows = logits.new_tensor([float(len(logits))], dtype=torch.float32)
        return {"logits": logits, "loss": loss_of(output).reshape(1), "rows": rows}


def joined(parts: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the output of the whole batch from what `Counted` gave on every GPU (losses and rows of shape [GPUs])."""
    if "loss" not in parts:
        return {"logits": parts["logits"]}
    return {"logits": parts["logits"], "loss": (parts["loss"] * parts["rows"]).sum() / parts["rows"].sum()}


def _buckets(tensors: list[torch.Tensor], limit: int = 25 * 2**20) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors in groups of one dtype and at most `limit` bytes (or one tensor); DDP's own limit."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.nbytes > limit or tensor.dtype is not bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
