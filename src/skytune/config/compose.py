"""Presets and overrides to one `RunConfig`, with Hydra and hydra-zen. Imported by `src/run.py` alone."""

import inspect
import os
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra_zen import ZenStore, builds
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from . import accelerate_import as accelerate_config
from .cli_grammar import GLOBAL, SUGAR, empty, quoted, translate, verbatim
from .errors import ConfigError
from .help import field_type, in_dict, is_plain, presets, takes_group, wants_text, without_dots
from .schema.run import RunConfig
from .secrets import check_secret_names, mask_secrets, masked
from .serialize import describe, to_dict
from .targets import Configurable, import_plugins, registry
from .trust import approve, flat, wishes

OFFERED = {
    "model": ("num_labels", "id2label", "label2id", "vocab_size"),
    "metric": ("predictions", "references", "logits", "keep_in_memory"),
    "callback": ("config",),
}
"""Parameters that the package fills in when the thing is called: a preset must not freeze their defaults."""

LIFTED = {"optimizer": ("lr", "weight_decay")}
"""Parameters that have a key of their own in the group, which the rest of the package reads."""

BASE = "continued"
"""Name of the configuration that a run which is continued brings along."""


def compose_run(
    folder: Path, overrides: list[str], extra_folder: Path | None = None, base: dict[str, Any] | None = None
) -> RunConfig:
    """Return the validated configuration of `configs/config.yaml` under `folder` with command-line overrides.

    Args:
        extra_folder: presets of the user's own.
        base: plain values of a whole configuration that take the place of `config.yaml`.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    if any(text.startswith("data._target_=") for text in overrides) and not any(
        text.startswith("data=") for text in overrides
    ):
        overrides = ["data=target", *overrides]  # the default data set's class names and size are not theirs
    overrides = [_readable(translate(text)) for text in overrides]
    overrides = _with_accelerate(overrides)
    parsed = [_parse(text) for text in overrides]
    trust = any(o.key_or_group == "trust" and o.value() is True for o in parsed)
    import_plugins([*_plugins(parsed), *(base.get("plugins", []) if base is not None and trust else [])])
    _register(base)
    groups = presets(folder)
    if extra_folder is not None:
        if not extra_folder.is_dir():
            raise ConfigError(f"--config-dir {extra_folder}: no such folder")
        for group, entries in presets(extra_folder).items():
            groups.setdefault(group, {}).update(entries)
        overrides = [*overrides, f"hydra.searchpath=[file://{extra_folder.absolute()}]"]
    for override in parsed:
        _check(override, groups)
    for place, override in enumerate(parsed):
        # A group of free keys takes any: Hydra is told so by ++, where the value is a group itself.
        if isinstance(override.value(), dict) and _is_dict(override.key_or_group, groups):
            overrides[place] = f"++{overrides[place]}"
    added = [group for group in groups if base is not None or group == "experiment"]  # they stand in no defaults list
    starts = tuple(f"{group}{mark}" for group in added for mark in "@=")
    overrides = [f"+{text}" if text.startswith(starts) else text for text in overrides]
    emptied = [o.key_or_group for o in parsed if o.is_delete() and _is_dict(o.key_or_group, groups)]
    overrides = [text for text in overrides if text.lstrip("~") not in emptied]
    try:
        with initialize_config_dir(config_dir=str(folder.absolute()), version_base="1.3", job_name="skytune"):
            composed = compose(BASE if base is not None else "config", overrides=overrides)
        values = OmegaConf.to_container(composed, resolve=True, enum_to_str=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(_one_line(error)) from error
    _check_experiment(parsed, [folder, *([extra_folder] if extra_folder is not None else [])])
    for key in emptied:
        empty(values, key)
    check_secret_names(values)
    try:
        config = RunConfig.parse(values)
    except ConfigError as error:
        raise ConfigError(masked(str(error))) from error
    if config.trust and not trust:
        raise ConfigError("trust=true: give it on the command line, where only you can")
    if base is not None:
        _approve(base, config, parsed, trust)
    if config.launch.accelerate_config and not any(text.startswith(f"{accelerate_config.KEY}=") for text in overrides):
        raise ConfigError(f"{accelerate_config.KEY}: give it on the command line, so that presets cannot go before it")
    if "plugins" not in {override.key_or_group for override in parsed}:
        config.plugins = list(dict.fromkeys([*_plugins(parsed), *config.plugins]))
        import_plugins(config.plugins)  # those that a preset names: a mistake in them is told here, not by a worker
    return mask_secrets(config)


def _approve(base: dict[str, Any], config: RunConfig, parsed: list[Override], trust: bool) -> None:
    """Refuse what the configuration of a store wants to have run or sent, where the command line neither says it itself
    nor names its module."""
    given = {o.key_or_group: o.value() for o in parsed if not o.is_delete()}
    typed, left = dict(flat(given)), wishes(to_dict(config))
    modules = [str(value).rpartition(".")[0] for key, value in typed.items() if key.endswith("_target_")]
    wanted = {k: v for k, v in wishes(base).items() if left.get(k) == v and k not in given and k not in typed}
    key = next((key for key in ("search.take", "checkpoint.path") if key in given), "resume")
    approve(wanted, [*_plugins(parsed), *modules], trust, f"{key}={given.get(key)}: its configuration")


def _check_experiment(parsed: list[Override], folders: list[Path]) -> None:
    """Refuse a preset beside `experiment=` that names other data, or another model, than the experiment, which goes
    before all others: both would be mixed.

    Raises:
        ConfigError: with the key.
    """
    given = {o.key_or_group.partition("@")[0]: o.value() for o in parsed if not o.is_delete()}

    def keys(group: str) -> dict[str, Any]:
        files = [folder / group / f"{given[group]}.yaml" for folder in folders]
        found = next((yaml.safe_load(file.read_text(encoding="utf-8")) for file in files if file.is_file()), None) or {}
        return dict(flat(found if group in GLOBAL else {group: found}))

    own = keys("experiment") if isinstance(given.get("experiment"), str) else {}
    for group in [group for group, name in given.items() if own and group != "experiment" and isinstance(name, str)]:
        named = [f"{group}.{key}" for key in ("name", "source", "train", "_target_")]
        section = {k: v for k, v in keys(group).items() if k in named and k in own and k not in given}
        lost = [(key, value) for key, value in section.items() if own[key] != value]
        for key, value in lost[:1]:
            raise ConfigError(
                f"{group}={given[group]}: experiment={given['experiment']} goes before it with {key}={own[key]} (not "
                f"{value}): set single keys on the command line, or give a copy of its file in a folder of yours "
                "(--config-dir)"
            )


def _with_accelerate(overrides: list[str]) -> list[str]:
    """Return the overrides with those of a person's `accelerate config` file before them, where they name one.

    What the command line says of a key, or of a preset of its group, goes before the file.
    """
    parsed = [_parse(text) for text in overrides]
    named = [o.value() for o in parsed if o.key_or_group == accelerate_config.KEY and not o.is_delete()]
    if not named or named[-1] is None:
        return overrides
    typed = {override.key_or_group.split("@")[0] for override in parsed}
    found = accelerate_config.read_overrides(str(named[-1]))
    kept = [(key, value) for key, value in found if not {key, key.split(".")[0]} & typed]
    return [*(f"{key}={value}" for key, value in kept), *overrides]


def to_yaml(config: RunConfig) -> str:
    """Return the configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


def run_to_promote(overrides: list[str]) -> str | None:
    """Return the trained model of `pipeline=promote checkpoint=`; None where the command does something else."""
    typed = _typed(overrides)
    place = typed.get("checkpoint.path")
    return str(place) if typed.get("pipeline") == "promote" and place is not None else None


def search_to_take(overrides: list[str]) -> str | None:
    """Return the search that `search.take=` names; None where it does not."""
    name = _typed(overrides).get("search.take")
    return None if name is None else str(name)


def parse_resume_path(overrides: list[str]) -> str | None:
    """Return the path or URL that `resume=` names; None where it is a word, or the run trains nothing."""
    typed = _typed(overrides)
    place = typed.get("resume")
    trains = typed.get("pipeline") in (None, "training")
    return place if trains and isinstance(place, str) and "/" in place else None


def _typed(overrides: list[str]) -> dict[str, Any]:
    """Return the values of the command line by key."""
    return {o.key_or_group: o.value() for o in (_parse(_readable(translate(text))) for text in overrides)}


def _register(base: dict[str, Any] | None) -> None:
    """Put the schema, what `@configurable` registered and a run's own values into Hydra's store, through hydra-zen."""
    store = ZenStore(name="skytune", deferred_hydra_store=True)
    store(OmegaConf.structured(RunConfig), name="schema")  # the dataclass itself, not a recipe that builds it
    if base is not None:
        store({"defaults": ["schema", "_self_"], **verbatim(base)}, name=BASE)
    for entry in registry.values():
        store(_node(entry), group=entry.group, name=entry.name)
    store.add_to_hydra_store(overwrite_ok=True)


def _node(entry: Configurable) -> DictConfig:
    """Return a preset for something of the user's: its import path, and its signature's defaults as arguments.

    A parameter without a default is left out: it is given on the command line, or offered when the thing is called. So
    is one whose default is no plain value (a function, a tensor): the thing itself knows it.
    """
    skipped = [
        name
        for name, parameter in inspect.signature(entry.obj).parameters.items()
        if name in OFFERED.get(entry.group, ()) or not is_plain(parameter.default)
    ]
    recipe = builds(entry.obj, populate_full_signature=True, zen_exclude=skipped)
    config = OmegaConf.structured(recipe)
    values = {key: config._get_node(key) for key in config if not OmegaConf.is_missing(config, key)}
    target = entry.target
    values.pop("_target_", None)
    if entry.group in SUGAR:
        return OmegaConf.create({"_target_": target, **values})
    lifted = {key: values.pop(key) for key in LIFTED.get(entry.group, ()) if key in values}
    node = OmegaConf.create({"_target_": target, **lifted, "args": values})
    return OmegaConf.create({entry.group: node}) if entry.group in GLOBAL else node


def _readable(text: str) -> str:
    """Quote a value that Hydra's grammar cannot read (an umlaut, an apostrophe, `=`) where the key wants text."""
    try:
        _parse(text)
    except ConfigError:
        key, equals, value = text.partition("=")
        if equals and value and "\n" not in value and wants_text(key.lstrip("+")):
            return f"{key}={quoted(value)}"
        raise
    return text


def _parse(text: str) -> Override:
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        parsed, cause = None, error
    if parsed is None or not parsed.key_or_group:
        shown = masked(" ".join(text.split()))
        message = f"cannot read '{shown}': write key=value (quote values with commas, spaces or =)"
        raise ConfigError(message) from (cause if parsed is None else None)
    return parsed


def _plugins(parsed: list[Override]) -> list[str]:
    """Return the modules to import before composing: `plugins=[...]`, else `SKYTUNE_PLUGINS` (comma-separated)."""
    for override in parsed:
        if override.key_or_group == "plugins":
            value = override.value()
            if isinstance(value, dict):
                raise ConfigError("plugins: must be a list of modules, plugins=[my_module]")
            return [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return [name for name in os.environ.get("SKYTUNE_PLUGINS", "").split(",") if name]


def _check(override: Override, groups: dict[str, dict[str, str]]) -> None:
    """Refuse an override that Hydra would refuse less readably."""
    key, text = override.key_or_group, masked((override.input_line or "").replace("@_global_", ""))
    if override.is_sweep_override():
        name, _, value = text.partition("=")
        meant = f"{name}={quoted(value)}"
        meant = shlex.quote(meant) if set(meant) & set('"$`\\!') else f'"{meant}"'
        raise ConfigError(
            f"'{text}' asks for several runs; run one value at a time, or quote a comma that is meant: {meant}"
        )
    if key in groups:
        name = override.value()
        if isinstance(name, (dict, list)):
            allowed = ", ".join(groups[key])
            raise ConfigError(f"{key}={name}: name one preset ({allowed}); keys are set one by one ({key}.KEY=...)")
        if name is not None and name not in groups[key]:
            raise ConfigError(f"{key}={name}: no such preset; allowed: {', '.join(groups[key])}")
        return
    if key.split(".")[0] == "hydra":
        raise ConfigError(f"'{text}': Hydra's own settings have no effect here (--config-dir adds presets of yours)")
    hint = field_type(key)
    free = "." in key and in_dict(key)
    if override.is_delete() and not free and not _is_dict(key, groups):
        raise ConfigError(
            f"'{text}': {key} is a fixed key and cannot be taken away; set it (null or false switch most things off)"
        )
    if override.is_add() and not free:
        raise ConfigError(f"'{text}': {key} is there already; write {text.lstrip('+')}")
    if not free and not override.is_delete():
        value = override.value()
        if isinstance(value, dict) and not takes_group(hint):
            raise ConfigError(f"{masked(f'{key}={value}')}: must be {describe(hint)}")


def _is_dict(key: str, groups: dict[str, dict[str, str]]) -> bool:
    """Whether the key is a group of free keys itself; `~key` empties it."""
    return key not in groups and not in_dict(key) and typing.get_origin(field_type(key)) is dict


def _one_line(error: Exception) -> str:
    """Return what Hydra or OmegaConf found wrong as one line that starts with the key."""
    found: BaseException = error
    while found.__cause__ is not None:
        found = found.__cause__
    if isinstance(found, HydraException) and isinstance(found.__context__, OmegaConfBaseException):
        found = found.__context__  # of a preset: Hydra names its file, and leaves out what is wrong in it
    key = getattr(found, "full_key", None) or ""
    first = str(found).strip().splitlines()[0] if str(found).strip() else type(found).__name__
    if isinstance(found, MarkedYAMLError) and found.problem_mark is not None:
        mark = found.problem_mark
        return f"{mark.name}, line {mark.line + 1}: is no YAML: {found.problem}"
    absent = re.match(r"Could not delete from config. '(.+)' does not exist", first)
    if absent:
        return f"~{absent[1]}: there is no such key to take away"
    if isinstance(found, InterpolationResolutionError):
        return f"{key}: {first}"
    if key:
        try:
            hint = field_type(without_dots(str(key).split("[")[0]))
            wanted = first if hint is Any else f"must be {describe(hint)}"
        except ConfigError as unknown:
            return f"{unknown}; to add a key to a group of free keys, put a + before it"
        value = getattr(found, "value", None)
        shown = masked(f"={value!r}") if value is not None else ""
        if "not in struct" in first:
            return f"unknown key '{key}': to add a key of your own put a + before it (+{key}=...)"
        return f"{key}{shown}: {wanted}"
    return first
