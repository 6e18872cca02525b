"""Writes what documentation can take from the source: `docs/config.md`, and the rooms in `docs/architecture.md`.

python tools/docs.py      (`make docs`)
"""

import ast
import dataclasses
import re
import sys
import tomllib
import typing
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from skytune.config.compose import compose_run  # noqa: E402
from skytune.config.help import field_docs, presets  # noqa: E402
from skytune.config.serialize import describe, to_dict  # noqa: E402

HEAD = """# Every preset and every key

Written by `make docs` from the configuration's help; `python src/run.py --help` shows the same for your command. Values
are those of the default run, `python src/run.py`. How they are changed: [using.md](using.md).
"""


def config_page() -> str:
    """Return `docs/config.md`: presets by group, then every key with type, value in the default run, and help."""
    lines = [HEAD, "## Presets"]
    for group, entries in presets(ROOT / "configs").items():
        lines += ["", f"### {group}", "", "| Preset | |", "| --- | --- |"]
        lines += [f"| `{group}={name}` | {_cell(about)} |" for name, about in entries.items()]
    lines += ["", "## Keys"]
    return "\n".join([*lines, *_keys(compose_run(ROOT / "configs", []), "", "Keys without a group.")]) + "\n"


def _keys(config: Any, prefix: str, about: str) -> list[str]:
    docs, hints = field_docs(type(config)), typing.get_type_hints(type(config))
    title = prefix.rstrip(".") or "The run"
    lines = ["", f"### {title}", "", about, ""]
    lines += ["| Key | Default | |", "| --- | --- | --- |"]
    groups = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            groups.append(field.name)
            continue
        lines.append(f"| `{prefix}{field.name}` | `{_cell(_value(value))}` | {_meaning(docs, hints, field.name)} |")
    for name in groups:
        lines += _keys(getattr(config, name), f"{prefix}{name}.", docs.get(name, ""))
    return lines


def _meaning(docs: dict[str, str], hints: dict[str, Any], name: str) -> str:
    hint, text = hints[name], docs.get(name, "")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _cell(f"[{', '.join(f'`{member.value}`' for member in hint)}] {text}")
    return _cell(f"({'any value' if hint is Any else describe(hint)}) {text}")


def _value(value: Any) -> str:
    plain = to_dict(value)
    if isinstance(plain, list):
        return "[" + ",".join(map(str, plain)) + "]"
    return str(plain).lower() if isinstance(plain, bool) else "null" if plain is None else str(plain) or "''"


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def rooms() -> str:
    """Return the rooms, top to bottom as `pyproject.toml` orders them, each with the first words of its docstring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    modules = [module for layer in contract["layers"] for module in layer.split(" | ")]
    lines = [f"| `{module.rpartition('.')[2]}` | {_cell(_about(module))} |" for module in modules]
    return "\n".join(["| Room | What it is |", "| --- | --- |", *lines])


def _about(module: str) -> str:
    path = ROOT / "src" / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    text = re.sub(r"^The room of ", "", text)
    return text[:1].upper() + text[1:]


def architecture(text: str) -> str:
    """Return `docs/architecture.md` with the rooms as they are."""
    return re.sub(
        r"(<!-- rooms -->\n).*?(<!-- /rooms -->)", lambda m: m[1] + rooms() + "\n" + m[2], text, flags=re.DOTALL
    )


def pages() -> dict[Path, str]:
    """Return what `make docs` writes, by file."""
    page = ROOT / "docs" / "architecture.md"
    return {ROOT / "docs" / "config.md": config_page(), page: architecture(page.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
