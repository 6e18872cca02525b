"""What is sent to the machines: this package's code, the pins of its packages, modules of the user's, the job's inputs.

All of it lies in one folder that SkyPilot syncs: `code/`, `requirements.txt`, `constraints.txt` and `job/`. Nothing is
taken from the project folder but Python files of the user's own that the configuration names.
"""

import os
import re
import shutil
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import skytune

from ...config import PACKAGED, RunConfig, UserError
from ...config.schema.tracking import AUTO
from ...config.targets import split_spec
from ...data.linking import link_or_copy
from ...job import JobDir
from ...tasks.own_metrics import module_script

LIMIT_MB = 5.0
"""Code larger than this is a mistake: data, a virtual environment, outputs."""

SUFFIXES = (".py", ".json", ".yaml", ".yml", ".txt", ".toml", ".jinja")
"""Files of the user's that modules may need; data and models are none of them."""

ALWAYS_LEFT = (
    ".*",
    "__pycache__",
    "*.egg-info",
    "node_modules",
    "site-packages",
    "venv",
    "env",
    "outputs",
    "wandb",
    "runs",
    "build",
    "dist",
    "data",
    "datasets",
    "checkpoints",
    "logs",
    "mlruns",
    "tests",
)
"""Names that are no code of a job, wherever they stand."""

SYSTEM_GB = 25
"""Of a machine's disk: its system, PyTorch and CUDA's libraries."""

DISK_GB = 256
"""Of a machine's disk where nothing is said (SkyPilot 0.11)."""

PACKAGE = Path(skytune.__file__).resolve().parent


def stage(job: JobDir, folder: Path, *, inputs: bool = True) -> None:
    """Lay everything that a machine needs into `folder`; large files are linked where the disk can.

    Args:
        inputs: whether the job's inputs too; they may go another way (`s3_transfer`).

    Raises:
        UserError: the code is larger than `LIMIT_MB`; a metric is a folder of this machine; the disk is full.
    """
    shutil.rmtree(folder, ignore_errors=True)
    held = job.job
    for name in held.config.eval.metrics or ():
        if name not in PACKAGED and module_script(name).is_file():
            raise UserError(
                f"eval.metrics: {name}: a metric's folder is not sent to other machines; take it out there and name "
                "its class, which is: '+eval.extra_metrics.NAME._target_=MODULE.CLASS'"
            )
    code = folder / "code"
    shutil.copytree(PACKAGE, code / "skytune", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    paths = _stage_own(held.config, [Path(path) for path in held.paths], folder)
    check_upload_size(folder)
    (folder / "requirements.txt").write_text("\n".join(requirements(held.config)) + "\n")
    (folder / "constraints.txt").write_text(constraints())
    target = JobDir(folder / "job")
    target.root.mkdir(parents=True)
    target.write_job(replace(held, paths=paths))  # relative ones: the folder lies elsewhere on the machine
    if inputs:
        stage_inputs(job, folder)
    if held.config.checkpoint.store is None and (job.root / "checkpoints").is_dir():
        _link_tree(job.root / "checkpoints", target.root / "checkpoints")


def stage_inputs(job: JobDir, folder: Path) -> None:
    """Lay the job's inputs into `folder`."""
    _link_tree(job.inputs, JobDir(folder / "job").inputs)


def check_upload_size(folder: Path) -> None:
    """Refuse code that cannot be all code.

    Raises:
        UserError: it is larger than `LIMIT_MB`, with the largest files.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if sum(sizes.values()) > LIMIT_MB * 1e6:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path.relative_to(folder)} ({sizes[path] / 1e6:.1f} MB)" for path in largest)
        raise UserError(
            f"the code to upload is {sum(sizes.values()) / 1e6:.0f} MB, at most {LIMIT_MB:g} MB are meant: {named}; "
            "name what is no code in a file .skyignore in its folder (one pattern a line)"
        )


def check_disk_size(inputs: Path, config: RunConfig, disk_gb: int | None) -> None:
    """Refuse a disk on which inputs and checkpoints will not fit, as far as their sizes are known before training.

    A checkpoint holds the weights and, with AdamW, two states of their size. Without a store elsewhere
    `checkpoint.keep` of them, the best one and the one that is being written lie there at once; with one, the one that
    is being written and the one that is read at the end.

    Args:
        inputs: the job's.
        disk_gb: None means SkyPilot's own size.

    Raises:
        UserError: with both sizes.
    """
    disk = disk_gb or DISK_GB
    found = (Path(root) / name for root, _, names in os.walk(inputs, followlinks=True) for name in names)
    sizes = {path: path.stat().st_size for path in found if path.is_file()}
    weights = sum(size for path, size in sizes.items() if path.suffix == ".safetensors")
    checkpoints = config.checkpoint.keep + 2 if config.checkpoint.store is None else 2
    needed = SYSTEM_GB + (sum(sizes.values()) + 3 * weights * checkpoints) / 1e9
    if needed > disk:
        own = "" if disk_gb else " (SkyPilot's own size)"
        raise UserError(
            f"compute.disk_size={disk}{own}: inputs, checkpoints and the system need about {needed:.0f} GB on each"
        )


def requirements(config: RunConfig) -> list[str]:
    """Return what a machine installs: the extra `train`, and what the configuration needs besides it."""
    file = PACKAGE.parents[1] / "pyproject.toml"
    if file.is_file():
        extras = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    else:
        extras = _of_metadata()
    found = list(extras["train"])
    if any(url.startswith("s3://") for url in (config.checkpoint.store or "", config.upload.url or "", config.resume)):
        found += [line for line in extras["aws"] if line.startswith("s3fs")]
    if "wandb" in config.tracker.names or (AUTO in config.tracker.names and os.environ.get("WANDB_API_KEY")):
        found += extras["wandb"]
    if config.strategy.name.value.startswith("zero"):
        found += extras["deepspeed"]
    return found


def constraints() -> str:
    """Return the versions to install: the project's pins, else those that are installed here."""
    file = PACKAGE.parents[1] / "constraints.txt"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    pins = {found.name.lower(): found.version for found in metadata.distributions() if found.name}
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()) if "+" not in version)


def _of_metadata() -> dict[str, list[str]]:
    """Return the extras of the installed package, where there is no checkout."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("skytune") or []:
        package, _, condition = line.partition(";")
        extra = re.search(r"extra *== *['\"]([\w-]+)['\"]", condition)
        if extra:
            found.setdefault(extra[1], []).append(package.strip())
    return found


def _stage_own(config: RunConfig, paths: list[Path], folder: Path) -> list[str]:
    """Copy the folders in which modules that the configuration names lie; return their new places in `folder`."""
    targets = [config.model._target_, config.optimizer._target_, config.schedule._target_]
    targets += [split_spec(spec)[0] for spec in (*config.callbacks.values(), *config.eval.extra_metrics.values())]
    tops = {name.split(".")[0] for name in (*filter(None, targets), *config.plugins)} - {"skytune"}
    found = []
    for number, path in enumerate(paths):
        if any((path / f"{top}.py").is_file() or (path / top).is_dir() for top in tops):
            _copy_code(path, folder / "own" / str(number))
            found.append(f"own/{number}")
    return found


def _copy_code(source: Path, target: Path) -> None:
    """Copy the code below a folder, without what `ALWAYS_LEFT` and its `.skyignore` name."""
    file = source / ".skyignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    ignored = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]

    def left(where: Path, name: str) -> bool:
        inside = (where / name).relative_to(source).as_posix()
        return any(fnmatch(name, pattern) for pattern in (*ALWAYS_LEFT, *ignored)) or any(
            fnmatch(inside, pattern) for pattern in ignored
        )

    for root, folders, files in os.walk(source):
        where = Path(root)
        folders[:] = [
            name
            for name in folders
            if not left(where, name)
            and (where / name).resolve() != PACKAGE
            and not (where / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(SUFFIXES) and not left(where, name):
                place = target / (where / name).relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(where / name, place)


def _link_tree(source: Path, target: Path) -> None:
    """Lay a folder's files into another, links followed, large ones linked."""
    for root, _, files in os.walk(source, followlinks=True):
        place = target / Path(root).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            link_or_copy(Path(root) / name, place / name)
