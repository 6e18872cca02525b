"""The cells of a design: every combination of levels that is not excluded, times every seed, each a whole
configuration of its own."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import ConfigError, Held, Pipeline, RunConfig, SearchConfig, StudyConfig, to_dict
from ..config.help import field_type
from ..launch.gpus import processes_wanted
from ..launch.run_dir import slug
from .machines import LOCAL, Machine, machine_of

KEYS = {
    "rows": "data.max_rows",
    "processes": "launch.num_processes",
    "model": "model.name",
    "strategy": "strategy.name",
    "precision": "precision",
    "batch": "batch.global_size",
    "lr": "optimizer.lr",
    "scale_lr": "schedule.scale_lr",
    "packed": "compute.packed",
}
"""The key that a factor sets; other factors are keys themselves."""

COMPUTE = "compute"

Level = tuple[Any, dict[str, Any]]
"""Label, and the keys that it sets."""


def levels_of(design: StudyConfig) -> list[list[Level]]:
    """Return the levels of every factor, in the order of the design.

    Raises:
        ConfigError: a factor that there is not, or that another one overrules; a level that is there twice; an
            exclusion of what there is not.
    """
    factors = [[_level(name, level) for level in levels] for name, levels in design.factors.items()]
    for name, levels in zip(design.factors, factors, strict=True):
        labels = [label for label, _ in levels]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"study.factors.{name}: the level {twice} is there twice")
    _check_keys(design, factors)
    _check_exclude(design, factors)
    return factors


def excluded(design: StudyConfig, levels: Mapping[str, Any]) -> bool:
    """Return whether the design leaves a combination of levels (label by factor, and `seed`) out."""

    def fits(level: Any, wanted: Any) -> bool:
        return any(_is(level, one) for one in (wanted if isinstance(wanted, list) else [wanted]))

    return any(all(fits(levels[name], wanted) for name, wanted in entry.items()) for entry in design.exclude)


def _check_keys(design: StudyConfig, factors: Sequence[Sequence[Level]]) -> None:
    """Refuse keys that something else sets, too: one of the two would be ignored without a word."""
    owner: dict[str, str] = {}
    for name, levels in zip(design.factors, factors, strict=True):
        for key in {key for _, keys in levels for key in keys}:
            if key == "seed":
                raise ConfigError(f"study.factors.{name}: study.seeds lists the seeds of every cell")
            if owner.setdefault(key, name) != name:
                raise ConfigError(f"study.factors: '{owner[key]}' and '{name}' both set {key}; keep one of them")


def _check_exclude(design: StudyConfig, factors: Sequence[Sequence[Level]]) -> None:
    """Refuse to exclude what there is not: a slip of the pen would leave the combination in, and pay for it."""
    there = {name: [label for label, _ in levels] for name, levels in zip(design.factors, factors, strict=True)}
    there["seed"] = list(design.seeds)
    for entry in design.exclude:
        for name, wanted in entry.items():
            for one in wanted if isinstance(wanted, list) else [wanted]:
                if not any(_is(label, one) for label in there[name]):
                    levels = ", ".join(str(label) for label in there[name])
                    raise ConfigError(f"study.exclude: {name} has no level {one} ({levels})")


def _is(label: Any, wanted: Any) -> bool:
    wanted = "all" if wanted is None else wanted
    return label == _number(wanted) or str(label) == str(wanted)


def _level(factor: str, level: Any) -> tuple[Any, dict[str, Any]]:
    """Return a level's label, and the keys that it sets."""
    if isinstance(level, dict):
        values = {str(key): value for key, value in level.items() if key != "label"}
        label = level.get("label") or ", ".join(f"{key}={value}" for key, value in values.items())
        return label, {KEYS.get(key, key): _number(value) for key, value in values.items()}
    if factor == COMPUTE:
        return str(level), {COMPUTE: level}
    if isinstance(level, list):
        raise ConfigError(f"study.factors.{factor}: a level is a value or a group of keys, not a list: {level}")
    key, number = KEYS.get(factor, factor), _number(level)
    try:
        field_type(key)
    except ConfigError as error:
        allowed = ", ".join([COMPUTE, *KEYS])
        raise ConfigError(f"study.factors.{factor}: no such factor: {error}; factors are {allowed}, or keys") from error
    return ("all" if level is None else number), {key: number}


def _number(level: Any) -> Any:
    """Return `10k` as 10000 and `1M` as 1000000; anything else as it is."""
    short = re.fullmatch(r"(\d+(?:\.\d+)?)([kM])", level) if isinstance(level, str) else None
    return round(float(short[1]) * {"k": 1e3, "M": 1e6}[short[2]]) if short else level


ASIDE = (
    "name",
    "pipeline",
    "cache",
    "plugins",
    "log",
    "tracker",
    "upload",
    "promote",
    "resume",
    "study",
    "search",
    "debug",
)
"""Keys of the configuration that do not make another cell."""

DECIDES = ("select", "metric", "mode")
"""Keys of `checkpoint` that decide which weights are scored; where and how often is saved does not."""

AROUND = (
    "usd_per_hour",
    "region",
    "zone",
    "max_hourly_usd",
    "disk_size",
    "idle_minutes_to_autostop",
    "keep_on_failure",
    "max_hours",
    "recovery",
)
"""Keys of `compute` that change neither what a cell learns nor what it is computed on."""

MOST = 1000
"""A design with more cells than this is a mistake."""


@dataclass(frozen=True)
class Cell:
    """One training of an experiment."""

    name: str
    """Factors, levels and seed, and a hash of all that makes the cell: `processes-2_seed-1-3f2a9c41`."""

    levels: Mapping[str, Any]
    """Level by factor, as text or number."""

    seed: int
    machine: Machine
    devices: int
    """Processes that train, over all nodes."""

    config: RunConfig
    """What to train; its seed is the cell's."""

    sets_rows: bool = False
    """Whether a level says how many rows to train on."""

    @property
    def label(self) -> str:
        """The levels in a few words."""
        return ", ".join(f"{factor} {level}" for factor, level in self.levels.items()) or "the one cell"

    @property
    def id(self) -> str:
        """The hash at the end of the name, which is enough to name a cell."""
        return self.name.rpartition("-")[2]

    @property
    def samples(self) -> int | None:
        """Rows that training will have seen, None where the size of the data decides."""
        if self.config.max_steps:
            return self.config.max_steps * self.config.batch.global_size
        rows = self.config.data.max_rows
        return None if rows is None else rows * self.config.epochs

    @property
    def steps(self) -> int | None:
        """Optimizer steps, None where the size of the data decides."""
        if self.config.max_steps:
            return self.config.max_steps
        rows = self.config.data.max_rows
        return None if rows is None else self.config.epochs * -(-rows // self.config.batch.global_size)


def cells_of(config: RunConfig) -> list[Cell]:
    """Return the cells of `config.study`, in the order of the design, seeds last.

    Raises:
        ConfigError: a factor, level or instance that there is not; a combination that no run could have; no cell left.
    """
    design = config.study
    found: dict[str, Cell] = {}
    hashes: dict[str, Cell] = {}
    factors = levels_of(design)
    if len(design.seeds) * math.prod(map(len, factors)) > 10 * MOST:
        raise ConfigError(f"study.factors: more than {MOST} cells; take fewer levels")
    for combination in itertools.product(*factors):
        chosen = dict(zip(design.factors, (label for label, _ in combination), strict=True))
        keys = [keys for _, keys in combination]
        for seed in design.seeds:
            if not excluded(design, {**chosen, "seed": seed}):
                cell = make_cell(config, chosen, keys, seed)
                same = hashes.setdefault(cell.id, cell)
                if same is not cell:
                    raise ConfigError(
                        f"study.factors: '{cell.label}' and '{same.label}' are the same training; leave one out"
                    )
                found[cell.name] = cell
    if not found:
        raise ConfigError("study.exclude leaves no cell of the design")
    if len(found) > MOST:
        raise ConfigError(f"study.factors: {len(found)} cells, more than {MOST}; take fewer levels")
    return list(found.values())


def make_cell(
    base: RunConfig, labels: dict[str, Any], keys: list[dict[str, Any]], seed: int, of: str = "study, cell"
) -> Cell:
    """Return the cell of a combination of levels.

    Args:
        base: the configuration around it.
        labels: level by factor.
        keys: what the levels set, by key.
        of: what the cell is called in a message.

    Raises:
        ConfigError: no run could have this combination.
    """
    design = base.study
    plain = replace(base, study=StudyConfig(), search=SearchConfig(), pipeline=Pipeline.training)
    values = to_dict(plain)
    merged = {key: value for group in keys for key, value in group.items()}
    machine = machine_of(merged.pop(COMPUTE, LOCAL), design.machines)
    for key, value in merged.items():
        put(values, key, value)
    values["seed"] = seed
    where = ", ".join(f"{name} {label}" for name, label in labels.items())
    try:
        config = RunConfig.parse(values)
        if machine.local:
            devices = processes_wanted(config.compute, config.launch)
        else:
            devices = machine.devices * machine.nodes
            processes = merged.get(KEYS["processes"])
            if processes not in (None, machine.devices):
                raise ConfigError(
                    f"{machine} runs one process on each of its {machine.devices} devices a node: exclude "
                    f"processes {processes} there"
                )
            config = _on(config, machine)
        config = _held(config, design.held, devices)
    except ConfigError as error:
        raise ConfigError(f"{of} {where}: {error}") from error
    counted = {key: value for key, value in to_dict(config).items() if key not in ASIDE}
    counted["launch"] = {key: counted["launch"][key] for key in ("num_processes", "threads")}
    counted["checkpoint"] = {key: counted["checkpoint"][key] for key in DECIDES}
    counted["compute"] = {key: value for key, value in counted["compute"].items() if key not in AROUND}
    text = json.dumps([_changed(counted, to_dict(RunConfig())), str(machine), base.seed], sort_keys=True)
    told = "_".join(f"{slug(name)}-{slug(str(label))}" for name, label in {**labels, "seed": seed}.items())
    name = f"{told[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    told_rows = KEYS["rows"] in merged
    return Cell(
        name=name, levels=labels, seed=seed, machine=machine, devices=devices, config=config, sets_rows=told_rows
    )


def _held(config: RunConfig, held: Held, devices: int) -> RunConfig:
    """Return the configuration with what is held constant seen to."""
    if held is Held.steps and not config.max_steps:
        raise ConfigError("study.held=steps needs max_steps")
    if held is Held.per_device_batch and devices > 1:
        batch = config.batch
        return replace(config, batch=replace(batch, global_size=batch.global_size * devices))
    return config


def _on(config: RunConfig, machine: Machine) -> RunConfig:
    """Return the configuration for a machine that is brought up for the cell."""
    compute = replace(
        config.compute,
        accelerators=None,
        instance_type=machine.instance,
        num_nodes=machine.nodes,
        use_spot=machine.spot,
    )
    return replace(config, compute=compute)


def put(values: dict[str, Any], key: str, value: Any, of: str = "study.factors") -> None:
    """Set a dotted key in plain values of a configuration.

    Raises:
        ConfigError: no such key.
    """
    *path, last = key.split(".")
    for part in path:
        inner = values.get(part)
        if not isinstance(inner, dict):
            raise ConfigError(f"{of}: no such key: {key}")
        values = inner
    values[last] = value


def _changed(values: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from the defaults: a key that a later version adds makes no other cell of an old one."""
    found = {}
    for key, value in values.items():
        before = default.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = _changed(value, before)
            if inner:
                found[key] = inner
        elif value != before:
            found[key] = value
    return found
