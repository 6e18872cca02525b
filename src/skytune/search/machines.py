"""Trials on machines that SkyPilot brings: what one of them costs, and what all may cost.

`search.machines` clusters (`compute.num_nodes` machines each) take trials, from one rung to the next, until none is
left. What is taken away is brought up again by the launcher, and goes on from the store, as a trial does on its next
rung.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from ..common.text import duration
from ..config import ConfigError, NotReachable, RunConfig
from ..config.schema.sagemaker import PREFIX
from ..job import read_json
from ..launch import Launcher, SkyPilotLauncher
from ..launch.remote.machine import ROLE, STORE, merged
from ..launch.skypilot.kept import KeptClusters
from ..pricing.cost import Cost, attempt_of, dollars
from ..pricing.prices import Price
from ..study.cell_runner import Watch
from ..study.cells import Cell
from ..study.plan import LEAST_S
from ..study.store import BESIDES, ResultsStore, attempts_of


def check_machines(config: RunConfig) -> None:
    """See that a search may run on machines at all, before anybody is asked for one.

    Raises:
        ConfigError: with the key.
    """
    design = config.search
    if design.max_usd is None:
        raise ConfigError(f"search.machines={design.machines}: machines are paid for; say how much with search.max_usd")
    if config.compute.local:
        raise ConfigError(f"search.machines={design.machines} and compute.local=true exclude each other")


class Machines:
    """The machines of a search.

    Args:
        stack: what the stack was registered with: keys of `compute`, and `store`.

    Raises:
        ConfigError: no price is known by which `search.max_usd` could be kept, or trials could not go on on another
            machine.
        NotReachable: SkyPilot's catalog cannot be had.
    """

    def __init__(self, config: RunConfig, stack: Mapping[str, Any]) -> None:
        check_machines(config)
        self.stack, self.config = dict(stack), config
        if config.search.halving and not (config.checkpoint.store or self.stack.get(STORE)):
            raise ConfigError(
                f"search.machines={config.search.machines}: a trial goes on on another machine, so its checkpoints "
                "must lie where all reach them; give checkpoint.store=s3://BUCKET/PATH"
            )
        self.price = self._price()
        self.kept: KeptClusters | None = None

    def open(self, watch: Watch) -> None:
        """Make ready to bring machines up, or to find those of a driver that was killed.

        Args:
            watch: told what machines cost while no trial runs there.
        """
        folder = watch.store.path
        digits = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        name = f"skytune-{folder.name[:24].strip('-._')}-{digits}".replace("_", "-")
        names = [f"{name}-{number}" for number in range(self.config.search.machines or 0)]
        seen = [start["seen"] for path in (folder / "attempts").glob("*.json") for start in read_json(path)]
        self.kept = kept = KeptClusters(names, folder, max(seen, default=0.0), watch.besides_cells)
        watch.besides = lambda: kept.idle_usd

    def launcher(self) -> Launcher:
        """Return what brings machines for trials."""
        return SkyPilotLauncher(self.stack, self.kept)

    def shrink(self, most: int) -> None:
        """Take down, meanwhile, what is free beyond so many: no more trials will run at once."""
        if self.kept:
            self.kept.shrink(most)

    def close(self) -> None:
        """Take all machines down.

        Raises:
            UserError: some may still run; it says which.
        """
        if self.kept:
            self.kept.close()

    def _price(self) -> Price:
        """Return the most that an hour of a trial's machines costs."""
        given = self.config.compute
        compute = merged({key: value for key, value in self.stack.items() if key not in (STORE, ROLE)}, given)
        if (compute.instance_type or "").startswith(PREFIX):
            raise ConfigError(f"search.machines: {compute.instance_type} is SageMaker's; take an instance type of EC2")
        nodes = compute.num_nodes or 1
        if given.usd_per_hour is not None:
            return Price(given.usd_per_hour * nodes, "compute.usd_per_hour")
        region = compute.region or (compute.infra or "").partition("/")[2].partition("/")[0]
        if compute.instance_type and region:
            from ..pricing.catalog import catalog_price

            spot = bool(compute.use_spot) and not compute.recovery.on_demand_fallback
            try:
                price = catalog_price(compute.instance_type, spot, region)
            except NotReachable as error:
                raise NotReachable(
                    f"search.max_usd: SkyPilot's catalog cannot be had; compute.usd_per_hour gives the price ({error})"
                ) from error
            if price is not None:
                return Price(price * nodes, f"SkyPilot's catalog, {region}")
        if compute.max_hourly_usd is not None:
            return Price(compute.max_hourly_usd, "compute.max_hourly_usd")
        raise ConfigError(
            f"search.max_usd={self.config.search.max_usd:g} cannot be kept: nobody knows what a machine will cost; "
            "give compute.instance_type and compute.region, or compute.max_hourly_usd"
        )

    def check_budget(self, spent: float) -> None:
        """See that a trial can begin at all.

        Raises:
            ConfigError: less is left than a minute costs.
        """
        limit, minute = self.config.search.max_usd, (self.price.usd_per_hour or 0.0) * LEAST_S / 3600
        assert limit is not None, "check_machines"
        if spent + minute > limit:
            before = f"{dollars(spent)} are spent, and " if spent else ""
            raise ConfigError(
                f"search.max_usd={limit:g}: no trial can begin: {before}each is taken to need {duration(LEAST_S)} at "
                f"least ({dollars(minute)}); allow more"
            )


def spent(store: ResultsStore, cells: Iterable[Cell], price: Price) -> float:
    """Return the dollars of all starts of some cells, and of machines while none ran there."""
    besides = [attempt_of(entry) for start in store.starts(BESIDES) for entry in start.get("recorded") or []]
    return sum(
        Cost(attempts).usd or 0.0 for attempts in (besides, *(attempts_of(store, cell, price) for cell in cells))
    )
