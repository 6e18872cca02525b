"""What `pipeline=data` found: a few lines for the terminal, and a page for the browser."""

import shlex
from pathlib import Path
from typing import Any

from ..common import text
from ..config import DataConfig
from ..config.folders import home
from ..launch.run_dir import slug
from .page import flat, render
from .scoring import write_file


def check_summary(found: dict[str, Any], page: Path) -> str:
    """Return what a person wants to know of a data set, ending with where the page is."""
    lines = [f"  {found['about']}"]
    for name, split in found["splits"].items():
        line = f"  {name:<12}{split['rows']:>9,} rows, {split['from']}"
        if "lengths" in split:
            lengths = split["lengths"]
            line += f"; {lengths['median']} tokens, at most {lengths['max']}"
            line += f", {split['cut']:,} cut off at {found['limit']}" if split["cut"] else ""
        lines.append(line)
    lines += [
        f"  {leak['count']:,} texts of {leak['of']} stand in {leak['in']}" for leak in found["leaks"] if leak["count"]
    ]
    repeated = found["repeated"]["count"]
    lines += [f"  {text.counted(repeated, 'row')} of train repeat a text that stands there before"] if repeated else []
    if dropped := found["notes"].get("dropped_bad_rows"):
        lines.append(f"  {text.counted(dropped, 'row')} left out: malformed, or without text or label")
    lines += [f"  odd: {line}" for line in found["oddities"]]
    return "\n".join([*lines, f"  page: {shlex.quote(str(page))}"])


def write_check(config: DataConfig, found: dict[str, Any]) -> Path:
    """Write the page and return where it lies: one place for the data of one name.

    Raises:
        UserError: it cannot be written.
    """
    title = str(config._target_ or (config.train if config.source.value == "files" else config.name))
    place = home() / "data" / f"{slug(title)}.html"
    write_file(place, data_page(title, found).encode())
    return place


def data_page(title: str, found: dict[str, Any]) -> str:
    """Return the page; see `skytune.data.profile.profile`."""
    splits = []
    for name, split in found["splits"].items():
        classes = sorted(zip(found["names"], split["classes"], strict=True), key=lambda entry: -entry[1])
        most = max([count for _, count in split.get("histogram", [])], default=0)
        largest = max(split["classes"], default=0)
        splits.append({**split, "name": name, "most": most, "classes": classes, "largest": largest})
    notes = {key: value for key, value in found["notes"].items() if value and not key.endswith("_from")}
    together = [row for group in found["contradicting"] for row in group]
    values = {**found, "splits": splits, "notes": flat(notes), "contradicting": together}
    return render("data.html.jinja", title=title, **values)
