"""The configuration explained from its own source: what `--help` prints, and what kind of key a dotted name is (fixed,
free, text, a group), without importing anything heavy."""

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .schema.run import RunConfig
from .serialize import describe, to_dict, unknown_key
from .targets import registry

WIDTH = 100


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under every field of a dataclass, by field."""
    tree = ast.parse(inspect.getsource(importlib.import_module(cls.__module__)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            found = {}
            for item, following in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and is_text(following):
                    found[item.target.id] = re.sub(r"\s+", " ", following.value.value).strip()  # type: ignore[attr-defined]
            return found
    return {}


def field_type(key: str) -> Any:
    """Return the declared type at a dotted key of the run configuration.

    Raises:
        ConfigError: no such key.
    """
    hint: Any = RunConfig
    done: list[str] = []
    for part in key.split("."):
        if dataclasses.is_dataclass(hint):
            hints = typing.get_type_hints(hint)
            if part not in hints:
                raise ConfigError(unknown_key(".".join([*done, part]), list(hints)))
            hint = hints[part]
        elif typing.get_origin(hint) is dict:
            hint = typing.get_args(hint)[1]
        elif hint is not Any:
            raise ConfigError(f"unknown key '{key}': {'.'.join(done)} is {describe(hint)}, not a group")
        done.append(part)
    return hint


def in_dict(key: str) -> bool:
    """Whether the key lies inside a group of free keys (`extra`, `callbacks`, `model.args`, ...)."""
    parts = key.split(".")
    for cut in range(1, len(parts)):
        hint = field_type(".".join(parts[:cut]))
        if typing.get_origin(hint) is dict or hint is Any:
            return True
    return False


def takes_group(hint: Any) -> bool:
    """Whether a value of this type may be a group of keys."""
    return hint is Any or dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict


def wants_text(key: str) -> bool:
    """Whether there is such a key and its value is text."""
    try:
        return field_type(key) in (str, str | None)
    except ConfigError:
        return False


def without_dots(key: str) -> str:
    """Return the key with dots inside a free name (`prices.g5.xlarge`) taken for a part of the name."""
    parts = key.split(".")
    for cut in range(1, len(parts) - 1):
        hint = field_type(".".join(parts[:cut]))
        if typing.get_origin(hint) is dict and not takes_group(typing.get_args(hint)[1]):
            return ".".join([*parts[:cut], "_".join(parts[cut:])])
    return key


def is_plain(value: Any) -> bool:
    """Whether YAML and JSON can hold the value."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def presets(*folders: Path) -> dict[str, dict[str, str]]:
    """Return, by group and preset name, one line about every preset (YAML files and `@configurable`)."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(file for folder in folders for file in folder.glob("*/*.yaml")):
        if file.parent.name not in ("kubernetes", "stacks"):
            found.setdefault(file.parent.name, {})[file.stem] = _about(file)
    for (group, name), entry in sorted(registry.items()):
        found.setdefault(group, {})[name] = (inspect.getdoc(entry.obj) or entry.target).splitlines()[0]
    return found


def help_text(folders: list[Path], config: RunConfig) -> str:
    """Return the whole of `--help`: usage, presets by group, every key with its value in `config` and its meaning."""
    lines = [
        "skytune: fine-tune a Hugging Face model with one command",
        "",
        "  python src/run.py                                     the embedded default: no account, no hub",
        "  python src/run.py data=sst2 model=bert-base           the reference task",
        "  python src/run.py data=files data.train=a.tsv         your own file (csv, tsv, json, parquet, xlsx)",
        "  python src/run.py pipeline=data data=files data.train=a.tsv   look at it first; trains nothing",
        "  python src/run.py pipeline=evaluate checkpoint=PATH   score a trained model",
        "  python src/run.py pipeline=predict checkpoint=PATH 'predict.input=new/*.csv' predict.output=out.csv",
        "  python src/run.py pipeline=study experiment=laptop   what does it cost, how long, how good",
        "  python src/run.py debug=smoke                         two steps of everything",
        "",
        "  key=value changes a key    +group.key=value adds one to a group of free keys    ~group.key takes it away",
        "  --config-dir DIR adds presets of yours    --cfg prints the composed configuration    --version",
        "",
        "PRESETS  (group=name)",
    ]
    for group, entries in presets(*folders).items():
        width = max(len(name) for name in entries)
        lines += [f"  {group}"] + [f"    {name:<{width}}  {about}" for name, about in entries.items()]
    lines += ["", "CONFIGURATION  (as this command has it; words beside --help change it)"]
    lines += _describe_keys(config, "")
    return "\n".join(lines)


def _describe_keys(config: Any, prefix: str) -> list[str]:
    lines: list[str] = []
    docs, hints = field_docs(type(config)), typing.get_type_hints(type(config))
    fields = sorted(dataclasses.fields(config), key=lambda f: dataclasses.is_dataclass(getattr(config, f.name)))
    for entry in fields:
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            lines += ["", f"  {prefix}{entry.name}: {docs.get(entry.name, '')}"]
            lines += _describe_keys(value, f"{prefix}{entry.name}.")
            continue
        text = docs.get(entry.name, "").replace("`", "")
        hint = hints[entry.name]
        if isinstance(hint, type) and issubclass(hint, Enum):
            text = f"[{'|'.join(member.value for member in hint)}] {text}"
        lines += _wrapped(f"{prefix}{entry.name}={_shown(value)}", text)
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    import textwrap

    indent = 36
    start = f"    {head}"
    start = f"{start:<{indent}}" if len(start) < indent - 1 else start + "\n" + " " * indent
    body = textwrap.wrap(text, WIDTH - indent) or [""]
    return (start + ("\n" + " " * indent).join(body)).split("\n")


def _shown(value: Any) -> str:
    plain = to_dict(value)
    if plain is None:
        return "null"
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, list):
        return "[" + ",".join(str(item) for item in plain) + "]"
    return "{}" if plain == {} else str(plain)


def _about(file: Path) -> str:
    """Return the second comment line of a preset file (the first is the command that runs it)."""
    comments = [line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines()[:4] if line.startswith("#")]
    return comments[1] if len(comments) > 1 else ""


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is nothing but a text, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
