"""From a run's configuration to its strategy."""

from typing import TYPE_CHECKING

from ...config import RunConfig, StrategyName
from ..refusals import chosen, refuse_strategy

if TYPE_CHECKING:
    from ..devices import World
    from .protocol import Strategy


def build_strategy(config: RunConfig, world: "World") -> "Strategy":
    """Return the strategy of this run.

    Raises:
        UserError: it cannot be run here.
    """
    from .optimizer_sharding import OptimizerSharding
    from .replicated import DataParallel, Replicated, Single
    from .sharded import FullyShard

    refuse_strategy(config, world.size, world.device.type)
    kinds = {
        StrategyName.single: Single,
        StrategyName.dp: DataParallel,
        StrategyName.ddp: Replicated,
        StrategyName.fsdp: FullyShard,
        StrategyName.optimizer_sharding: OptimizerSharding,
    }
    name = chosen(config, world.size)
    if name.is_zero:
        from .deepspeed import DeepSpeed

        return DeepSpeed(config, world)
    return kinds[name](config, world)
