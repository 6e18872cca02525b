"""`study`: an experiment design. Which factors are varied over which levels, what is held, what it may cost."""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..checks import at_least
from ..errors import ConfigError


class Held(str, Enum):
    """What stays the same when a cell has more devices than another."""

    global_batch = "global_batch"
    per_device_batch = "per_device_batch"
    steps = "steps"


class PriceSource(str, Enum):
    """Where prices come from that the design does not give."""

    table = "table"
    skypilot = "skypilot"
    aws = "aws"


@dataclass(kw_only=True)
class StudyConfig:
    """An experiment: one training for every combination of levels and every seed (`pipeline=study`)."""

    name: str = ""
    """Folder of the results under SKYTUNE_HOME/benchmarks; the same name goes on where an earlier start ended."""

    note: str = ""
    """A sentence for the head of the page: which machine it was, what else ran there."""

    factors: dict[str, Any] = field(default_factory=dict)
    """Levels by factor. Factors: `rows`, `compute` (an EC2 instance, `p4d.24xlarge x 2` for two nodes, `g5.xlarge
    spot`, or `local`), `processes`, `model`, `strategy`, `precision`, `batch`, `lr`, `scale_lr`, or any key of the
    configuration. A level that sets several keys is a group: `{label: NAME, key: value, ...}`."""

    exclude: list[Any] = field(default_factory=list)
    """Combinations to leave out: groups of factor and level (or several), as `{batch: 256, processes: [1, 2]}`."""

    held: Held = Held.global_batch
    """What is comparable. `global_batch`: `batch.global_size` in all cells (the same optimization, spread thinner);
    `per_device_batch`: `batch.global_size` is what one device gets, so more devices take larger steps, and fewer;
    `steps`: `max_steps` optimizer steps in all cells, however many rows that is."""

    seeds: list[int] = field(default_factory=lambda: [1])
    """One repetition each: order of rows, new weights, dropout. The data are cut once, by `seed`."""

    parallel: int = 1
    """How many cells run at once. On one machine they disturb each other's times: use 1 there; with a price of that
    machine, 1 it must be."""

    max_usd: float | None = None
    """The whole experiment may cost so much, earlier starts included: refuses to begin what is expected to cost more,
    and stops before it does. Needed where a cell runs on a machine that is paid for. A cell of which nothing is known
    is taken to need a minute before it begins."""

    prices: dict[str, float] = field(default_factory=dict)
    """USD an hour of one machine, by the name it has under `compute` (`local`, `g5.xlarge`, `g5.xlarge spot`)."""

    price_source: PriceSource = PriceSource.table
    """Where a price comes from that is not in `prices`: nowhere (`table`), SkyPilot's catalog (`skypilot`), or AWS's
    price list and spot price history (`aws`, needs credentials)."""

    region: str = "us-east-1"
    """The region that looked-up prices are for."""

    machines: dict[str, Any] = field(default_factory=dict)
    """Instances that are not known here: `{name: {accelerator: A100, devices: 8}}`."""

    assume_samples_per_s: dict[str, float] = field(default_factory=dict)
    """For the forecast before anything has run: rows that one device learns from in a second, by accelerator (`T4`,
    `V100`, `cpu`). Half to twice of it is the expected range. Measured cells take its place."""

    assume_setup_s: float = 300.0
    """For the forecast: seconds until a paid machine trains (bringing it up, installing)."""

    keep_models: bool = False
    """Keep the weights of every cell; else only what they scored is kept."""

    retry_failed: bool = False
    """Run cells again that failed; else their rows stay."""

    dry_run: bool = False
    """Only say which cells there are, how long they are expected to take, and what they cost."""

    report_only: bool = False
    """Only draw the page again from the results that are there."""

    adopt: str = ""
    """`CELL:JOB` takes a job that was run by hand (its folder) as the result of a cell (its id in the dry run),
    marked as such. The job needs `data.seed` as the experiment has `seed`, so that it has the same rows."""

    def __post_init__(self) -> None:
        self.held, self.price_source = Held(self.held), PriceSource(self.price_source)
        for name, levels in self.factors.items():
            if not isinstance(levels, (list, tuple)):
                raise ConfigError(f"study.factors.{name}={levels}: must be a list of levels")
            if not levels:
                raise ConfigError(f"study.factors.{name}: no level; give at least one, or leave the factor out")
        for entry in self.exclude:
            if not isinstance(entry, dict) or not entry:
                raise ConfigError(f"study.exclude: {entry}: must be a group of factor and level")
            for name in entry:
                if name not in (*self.factors, "seed"):
                    allowed = ", ".join(self.factors) or "none"
                    raise ConfigError(f"study.exclude: '{name}' is no factor of this design ({allowed})")
        if not self.seeds:
            raise ConfigError("study.seeds: no seed; give at least one")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"study.seeds={self.seeds}: a seed is named twice; its cell would run once")
        if any(not 0 <= seed < 2**32 for seed in self.seeds):
            raise ConfigError(f"study.seeds={self.seeds}: each must lie between 0 and 2**32 - 1")
        at_least(self, "study", 1, "parallel")
        if self.max_usd is not None and not self.max_usd > 0:
            raise ConfigError(f"study.max_usd={self.max_usd:g}: nothing can run; must be above 0, or null for none")
        for key in ("prices", "assume_samples_per_s"):
            for name, value in getattr(self, key).items():
                if not (0 < value < math.inf):
                    unknown = " (leave out what is not known)" if key == "prices" else ""
                    raise ConfigError(f"study.{key}.{name}={value:g}: must be above 0{unknown}")
        at_least(self, "study", 0, "assume_setup_s")
        if self.adopt and not all(self.adopt.partition(":")[::2]):
            raise ConfigError(f"study.adopt={self.adopt}: write CELL:JOB, a cell's name and a job's folder")
        if sum(map(bool, (self.dry_run, self.report_only, self.adopt))) > 1:
            raise ConfigError("study.dry_run, study.report_only and study.adopt exclude each other")
