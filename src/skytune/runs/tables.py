"""What the command of runs prints, as text: tables as wide as the terminal; plain lines where it goes to a file."""

import io
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..common.text import MISSING, counted, duration, number, size
from ..job import JobDir
from ..pricing.cost import dollars
from .catalog import RunRecord, as_values
from .compare import Comparison, Difference
from .paired import Paired
from .removal import Removal
from .reproduce import Reproduction

MOST_DIFFERENCES = 40
"""Of one kind, printed; --json has all."""


def listing(runs: Sequence[RunRecord]) -> str:
    """Return one line a run, and what they take together."""
    table = _table("name", "date", "status", "data", "model", "score", "cost", "size")
    for run in runs:
        cells = (run.key, f"{run.created:%Y-%m-%d %H:%M}", run.status, run.data, run.model, score(run))
        table.add_row(*map(Text, (*cells, dollars(run.usd), size(run.size))))
    return _printed(table, Text(f"{counted(len(runs), 'run')}, {size(sum(run.size for run in runs))}"))


def score(run: RunRecord) -> str:
    """Return the main number with its 95 % interval: `accuracy 0.776 (0.762-0.789)`."""
    if run.score is None:
        return MISSING
    name, value, interval = run.score
    return f"{name} {number(value)}" + (f" ({interval[0]:.3f}-{interval[1]:.3f})" if interval else "")


def facts(run: RunRecord) -> dict[str, Any]:
    """Return what is shown of one run, as plain values by name."""
    job, result, origin = JobDir(run.folder), run.result, run.values.get("origin") or {}
    errors = job.read_errors()
    metrics = run.scores.get("metrics") or {}
    listed = as_values(run)
    return {
        **{name: listed[name] for name in ("name", "kind", "status", "date", "model", "data")},
        "error": next(iter(errors.values())).message if errors and not result else None,
        "score": score(run),
        "test rows": run.scores.get("n_rows"),
        **{f"test {name}": value for name, value in metrics.items()},
        "rows": run.values.get("sizes"),
        "classes": run.values.get("labels"),
        "steps": result.get("steps"),
        "best": result.get("best"),
        "seconds": result.get("phases"),
        "samples per second": result.get("samples_per_s"),
        "usd": run.usd,
        **{name: result.get(name) for name in ("device", "world_size", "strategy", "precision")},
        "seed": run.setting("seed"),
        "fingerprints": run.values.get("fingerprints"),
        **{name.replace("_", " "): value for name, value in origin.items()},
        "bytes": run.size,
        "folder": str(run.folder),
        "weights": str(job.model) if any(job.model.glob("*.safetensors")) else None,
        "report": str(page) if (page := job.outputs / "report.html").is_file() else None,
        "checkpoints": run.setting("checkpoint.store"),
    }


def showing(run: RunRecord) -> str:
    """Return what is known of one run, a line a fact."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts(run).items():
        if value not in (None, "", {}, []):
            grid.add_row(Text(name, style="bold"), Text(_shown(name, value)))
    return _printed(grid)


def comparison(found: Comparison) -> str:
    """Return everything that two runs differ in, and what the same rows say of both."""
    parts: list[Any] = [Text(f"A  {found.names[0]}\nB  {found.names[1]}")]
    decides, others = ([k for k in found.keys if k.decides is wanted] for wanted in (True, False))
    parts += _differing("keys that decide the result", decides)
    parts += _differing("other keys", others)
    parts += _differing("code", found.code)
    parts += _git(found)
    parts += _differing("packages", found.packages)
    parts += _differing("machine", found.machine)
    parts += [Text("\nrows", style="bold"), Padding(_rows(found), (0, 0, 0, 2))]
    parts += [Text("\nresult", style="bold"), *(Text(f"  {line}") for line in results(found))]
    return _printed(*parts)


def results(found: Comparison) -> list[str]:
    """Return in sentences how losses, scores and predictions differ."""
    lines = []
    if found.losses is not None:
        same = counted(found.losses.steps, "recorded step")
        if found.losses.first is None:
            lines.append(f"losses: the same to the bit at {same}")
        else:
            step, one, two = found.losses.first
            most, apart = found.losses.largest
            lines.append(
                f"losses: differ first at step {step:,} (A {one!r}, B {two!r}), "
                f"most at step {most:,}, by {number(apart)}"
            )
    if found.predictions is not None:
        lines.append(f"predictions: other numbers for {counted(found.predictions, 'test row')} that both have")
    for entry in found.scores:
        lines.append(f"test {entry.name}: A {number(entry.values[0], 4)}, B {number(entry.values[1], 4)}")
    lines += _tested(found.paired) if found.paired is not None else ["no rows that both have right or wrong: no test"]
    return lines


def _tested(test: Paired) -> list[str]:
    low, high = test.interval
    lines = [
        f"on the {test.rows:,} rows that both have: A {number(test.means[0], 4)}, B {number(test.means[1], 4)}; "
        f"B less A {test.difference:+.4f}, 95 % interval {low:+.4f} to {high:+.4f} (bootstrap over rows)"
    ]
    if test.alone is not None and test.p is not None:
        verdict = "B is better" if test.difference > 0 else "A is better"
        lines.append(
            f"McNemar's exact test: {test.alone[0]:,} rows only A has right, {test.alone[1]:,} only B; "
            f"p = {number(test.p)}: " + (verdict if test.p < 0.05 else "chance alone may explain this")
        )
    return lines


def reproduction(found: Reproduction) -> str:
    """Return whether a run came out the same, or what differs first."""
    if found.same:
        return _printed(Text(f"the same result as {found.first.key}, to the bit: losses and predictions"))
    lines = [f"not the same as {found.first.key}; what differs first: {found.difference}"]
    if found.changed:
        lines.append(f"changed since: {'; '.join(found.changed)}")
    if found.second is not None:
        lines.append(f"the second run: {found.second.folder}")
    return _printed(Text("\n".join(lines)))


def removals(plan: Iterable[Removal]) -> str:
    """Return what would go and what stays, and how many bytes that is."""
    plan, table = list(plan), _table("run", "frees", "goes with it")
    going = [entry for entry in plan if not entry.kept]
    for entry in going:
        table.add_row(*map(Text, (entry.run.key, size(entry.bytes), ", ".join(_parts(entry)))))
    lines = [f"stays: {entry.run.key}: {entry.kept}" for entry in plan if entry.kept]
    total = sum(entry.bytes for entry in going)
    lines.append(f"{counted(len(going), 'run')} would go, {size(total)} ({total:,} bytes) in all")
    return _printed(*([table] if going else []), Text("\n".join(lines)))


def _parts(entry: Removal) -> list[str]:
    parts = [f"folder {entry.run.folder}"]
    if entry.checkpoints:
        parts.append(f"checkpoints {entry.checkpoints} ({size(entry.checkpoint_bytes)})")
    if entry.records is not None:
        parts.append(
            f"ZenML: {counted(len(entry.records.runs), 'run')}, {counted(len(entry.records.artifacts), 'artifact')}"
        )
    return parts


def _differing(title: str, found: Sequence[Difference]) -> list[Any]:
    if not found:
        return []
    table = _table("", "A", "B")
    for entry in found[:MOST_DIFFERENCES]:
        table.add_row(*map(Text, (entry.name, *(_short(value) for value in entry.values))))
    more = (
        [Text(f"  ... and {len(found) - MOST_DIFFERENCES} more (--json has all)")]
        if len(found) > MOST_DIFFERENCES
        else []
    )
    return [Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2)), *more]


def _git(found: Comparison) -> list[Any]:
    commits = next(
        (entry.values for entry in found.code if entry.name == "git commit" and None not in entry.values), None
    )
    return [Text(f"  git diff {commits[0][:12]} {commits[1][:12]} -- src   shows it")] if commits else []


def _rows(found: Comparison) -> Table:
    table = _table("", "A", "B", "in both")
    for split in found.rows:
        shared = "the same rows, in order" if split.same else f"{split.shared:,}"
        table.add_row(*map(Text, (split.name, f"{split.counts[0]:,}", f"{split.counts[1]:,}", shared)))
    return table


def _short(value: Any) -> str:
    shown = "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _shown(name: str, value: Any) -> str:
    if name == "usd":
        return dollars(value)
    if name == "bytes":
        return size(value)
    if name == "seconds":
        return ", ".join(f"{key.removesuffix('_s')} {duration(spent)}" for key, spent in value.items())
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {number(inner, 4) if not isinstance(inner, str) else inner}" for key, inner in value.items()
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return number(value, 4) if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        right = column in ("cost", "size", "frees")
        table.add_column(
            column,
            justify="right" if right else "left",
            no_wrap=column in ("date", "status", "cost", "size", "frees"),
            overflow="fold",
        )
    return table


def _printed(*things: Any) -> str:
    """Return what rich makes of them; without colours, and never broken, where nobody looks."""
    seen = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if seen else 10_000
    console = Console(file=io.StringIO(), width=width, force_terminal=seen, highlight=False)
    for thing in things:
        console.print(thing)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]
