"""The room of strategies: how the training step is spread over processes. The loop does not know which one it has."""

from typing import TYPE_CHECKING

from ...config import RunConfig, StrategyName
from ...distributed.capabilities import check_strategy, chosen
from .base import Strategy, size

if TYPE_CHECKING:
    from ...distributed.context import DistContext


def build_strategy(config: RunConfig, world: "DistContext") -> Strategy:
    """Return the strategy of this run.

    Raises:
        UserError: it cannot be run here.
    """
    from .ddp import DataParallel, DataParallelBase, OptimizerSharding
    from .fsdp import FullyShard

    check_strategy(config, world.size, world.device.type)
    kinds = {
        StrategyName.single: Strategy,
        StrategyName.dp: DataParallel,
        StrategyName.ddp: DataParallelBase,
        StrategyName.fsdp: FullyShard,
        StrategyName.optimizer_sharding: OptimizerSharding,
    }
    name = chosen(config, world.size)
    if name.is_zero:
        from .deepspeed import DeepSpeed

        return DeepSpeed(config, world)
    return kinds[name](config, world)
