"""`make doctor`: is this machine ready for a run? A line a finding, with the way out; exit code 1 if one is a FAIL."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skytune

from ..common.findings import Finding, Level
from ..common.text import first_line
from ..config import UserError
from ..config.folders import home, load_dotenv
from . import checks, versions

COLOURS = {Level.ok: "32", Level.warn: "33", Level.fail: "31"}
NAMES = 12
"""Width of the column of names."""

ZENML_PORT = 8237
"""Where `zenml login --local` puts the dashboard."""


def main(argv: list[str] | None = None) -> int:
    """Print every finding as soon as it is there; return 1 if one of them is a FAIL, else 0."""
    argparse.ArgumentParser(prog="make doctor", description=__doc__).parse_args(argv)
    root = versions.checkout()
    if root is not None:
        load_dotenv(root)  # the run sees these variables too
    print("skytune doctor: is this machine ready for a run?\n", flush=True)
    counts = dict.fromkeys(Level, 0)
    for finding in examine():
        counts[finding.level] += 1
        print(line(finding), flush=True)
    print(f"\n{verdict(counts)}")
    return 1 if counts[Level.fail] else 0


def examine() -> Iterator[Finding]:
    """Yield every finding, in the order in which a person should read them; what takes long is done meanwhile."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        reduced = pool.submit(_safely, "2 x gloo", checks.all_reduce)
        asked = pool.submit(_safely, "hub", checks.hub)
        for name, check in (
            ("python", versions.python_version),
            ("versions", versions.versions),
            ("demo", versions.demo),
            ("devices", checks.devices),
        ):
            yield from _safely(name, check)
        yield from reduced.result()
        yield from _safely("nccl", _nccl)
        yield from _safely("disk runs", lambda: checks.disk("runs", home(), "SKYTUNE_HOME"))
        yield from asked.result()
        yield from _safely("zenml", zenml)


def zenml() -> list[Finding]:
    """Does ZenML's store open, what is in it, which stack is active, is there a dashboard?"""
    from ..stacks import environment

    environment.prepare(Path(skytune.__file__).resolve().parents[1])
    try:
        client = environment.connect()
    except UserError as error:
        return [Finding(Level.fail, "zenml", str(error))]
    from zenml import __version__ as version
    from zenml.config.global_config import GlobalConfiguration
    from zenml.enums import StoreType

    store = client.zen_store
    address = checks.tilde(store.url.removeprefix("sqlite:///"))
    runs = client.list_pipeline_runs(size=1).total
    found = [Finding(Level.ok, "zenml", f"{version}, {runs} run{'s' * (runs != 1)} in {address}")]
    stack = client.active_stack_model
    parts = [
        f"{kind.value.replace('_', ' ')} {component.flavor_name}"
        for kind, those in stack.components.items()
        for component in those
    ]
    found.append(Finding(Level.ok, "stack", f"{stack.name}: {', '.join(sorted(parts))}"))
    found += checks.disk("zenml", Path(GlobalConfiguration().local_stores_path), "ZENML_LOCAL_STORES_PATH")
    connected = store.type == StoreType.REST
    return [*found, dashboard(address if connected else None)]


def dashboard(address: str | None, port: int = ZENML_PORT) -> Finding:
    """Say where the dashboard is, or how to open it.

    Args:
        address: of the server that ZenML is connected to; None with the local store.
        port: where `zenml login --local` would put it.
    """
    if address is not None:
        return Finding(Level.ok, "dashboard", f"connected: {address}")
    if port_free(port):
        return Finding(Level.ok, "dashboard", f"not connected; port {port} is free: `zenml login --local` opens it")
    way = f"`zenml login --local --port {_free_port(port + 1)}`; a run without a dashboard does not care"
    return Finding(Level.warn, "dashboard", f"not connected, and port {port} is taken", way)


def port_free(port: int) -> bool:
    """Whether nothing listens on this port of this machine."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def line(finding: Finding, width: int | None = None) -> str:
    """Return a finding as text: level, name, what was found, and below it, where it is no `ok`, the way out."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
    indent = " " * (2 + 6 + NAMES)
    wrap = textwrap.TextWrapper(width=max(width, 50), break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent = f"  {finding.level.value:<6}{finding.name:<{NAMES}}"
    wrap.subsequent_indent = indent
    shown = wrap.fill(finding.text).replace(finding.level.value, _coloured(finding.level), 1)
    if finding.way_out:
        wrap.initial_indent, wrap.subsequent_indent = f"{indent}-> ", f"{indent}   "
        shown += "\n" + wrap.fill(finding.way_out)
    return shown


def verdict(counts: dict[Level, int]) -> str:
    """Return the last line."""
    warnings = f"{counts[Level.warn]} warning{'s' * (counts[Level.warn] != 1)}"
    if counts[Level.fail]:
        return f"not ready: {counts[Level.fail]} of these must be put right first (FAIL), {warnings}"
    return f"ready ({warnings}): python src/run.py" if counts[Level.warn] else "ready: python src/run.py"


def _safely(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Run a check; a doctor that dies at the first fault is of no use."""
    try:
        return check()
    except Exception as error:
        return [Finding(Level.fail, name, f"{type(error).__name__}: {first_line(error)}")]


def _nccl() -> list[Finding]:
    from ..launch.gpus import count_gpus

    gpus = count_gpus()
    return checks.all_reduce("nccl", gpus) if gpus >= 2 else []


def _free_port(first: int) -> int:
    return next((port for port in range(first, first + 50) if port_free(port)), first)


def _coloured(level: Level) -> str:
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return level.value if plain else f"\033[{COLOURS[level]}m{level.value}\033[0m"


if __name__ == "__main__":
    sys.exit(main())
