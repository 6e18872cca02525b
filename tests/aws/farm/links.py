"""An offline package index made of what is installed here: wheels of a few kilobytes that point at it.

A machine of the stand-in has no network, yet has to install torch, transformers and the rest, at once. For every
package of this interpreter's environment there is a wheel with the real name, version, dependencies and commands; its
content is one `.pth` line that names a folder of links into the environment, which the machines see read-only. So
`uv pip install ./skytune.whl[train] -c constraints.txt` resolves for real, fails for real where something is missing,
and takes a second.
"""

import base64
import hashlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

SITE = Path("/opt/farm/site-packages")
"""Where a machine sees this environment's packages."""

FOLDERS = Path("/opt/farm/packages")
"""Where a machine has one folder of links a package."""

WHEELS = Path("/opt/farm/wheels")
"""Where a machine has the wheels: what `--find-links` names."""

# What only works from its own place, or must come from elsewhere.
_LEFT_OUT = {"skytune", "pip"}


def site_packages() -> Path:
    """Return the folder in which this interpreter's environment keeps its packages."""
    return Path(sysconfig.get_paths()["purelib"])


def fingerprint() -> str:
    """Return a digest of what is installed here, and where."""
    names = sorted(f"{found.name}=={found.version}" for found in _installed())
    return hashlib.sha256("\n".join([str(site_packages()), sys.version, *names]).encode()).hexdigest()[:16]


def write(root: Path) -> int:
    """Write wheels and links of all that is installed here into the machine's tree `root`; return how many."""
    (root / WHEELS.relative_to("/")).mkdir(parents=True)
    count = 0
    for found in _installed():
        name = found.name.replace("-", "_").replace(".", "_").lower()
        folder = root / FOLDERS.relative_to("/") / name
        folder.mkdir(parents=True)
        extra: dict[str, str] = {}
        for top in sorted(_top_level(found)):
            if top.endswith(".pth"):
                extra[top] = (site_packages() / top).read_text()
            elif (site_packages() / top).exists():
                (folder / top).symlink_to(SITE / top)
        _write_wheel(root / WHEELS.relative_to("/"), found, name, extra)
        count += 1
    return count


def _installed() -> Iterator[Distribution]:
    for found in distributions(path=[str(site_packages())]):
        if found.name and found.name.lower() not in _LEFT_OUT and not found.name.startswith("__editable__"):
            yield found


def _top_level(found: Distribution) -> set[str]:
    """Return the files and folders directly in site-packages that belong to a package."""
    tops = {file.parts[0] for file in found.files or ()}
    return {top for top in tops if top not in ("..", "__pycache__") and not top.endswith((".dist-info", ".egg-info"))}


def _write_wheel(folder: Path, found: Distribution, name: str, extra: dict[str, str]) -> None:
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"  # what is compiled in there fits no other Python
    info = f"{name}-{found.version}.dist-info"
    # Python reads these in the order of their names, and a package's own may import from the package.
    files = {f"_farm_{name}.pth": f"{FOLDERS / name}\n", **extra}
    files[f"{info}/METADATA"] = found.read_text("METADATA") or ""
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: farm\nRoot-Is-Purelib: true\nTag: {python}-none-any\n"
    if commands := found.read_text("entry_points.txt"):
        files[f"{info}/entry_points.txt"] = commands
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{python}-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
