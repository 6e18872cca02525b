"""What `make doctor` looks at on this machine, apart from versions and ZenML: devices, processes, disk, hub."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..common.findings import Finding, Level
from ..common.text import size

WARN_BYTES, FAIL_BYTES = 5e9, 5e8
"""Free disk space below which the doctor warns, and below which no run can be expected to end."""

HUB_SECONDS = 3.0
"""How long the hub may take to answer."""

REDUCE_SECONDS = 40.0
"""How long the processes may take to start, find each other and add up; two take about five on an idle machine."""


def devices() -> list[Finding]:
    """Which processors there are, and how much memory."""
    from ..launch.gpus import count_gpus

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [Finding(Level.ok, "cpu", f"{cores} core{'s' * (cores != 1)}, {memory / 2**30:.0f} GiB of memory")]
    gpus = count_gpus()
    if gpus:
        import torch

        names = [torch.cuda.get_device_properties(i) for i in range(gpus)]
        shown = [f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in names]
        text = ", ".join(f"{shown.count(one)} x {one}" for one in dict.fromkeys(shown))
        return [*found, Finding(Level.ok, "gpu", text)]
    if _driver_without_gpu():
        import torch

        way = f"nvidia-smi shows them? torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        return [*found, Finding(Level.warn, "gpu", "a GPU driver is loaded, but torch sees no device", way)]
    if sys.platform == "darwin":
        import torch

        if torch.backends.mps.is_available():
            return [*found, Finding(Level.ok, "gpu", "MPS (the GPU of this Mac)")]
    return [*found, Finding(Level.ok, "gpu", "none: compute=auto trains on the CPU")]


def all_reduce(backend: str = "gloo", processes: int = 2, timeout: float = REDUCE_SECONDS) -> list[Finding]:
    """Start worker processes as a run does and have them add numbers up together."""
    from ..launch.local import loopback
    from ..launch.processes import end_group, environment, module_command

    name, start = f"{processes} x {backend}", time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        child = subprocess.Popen(
            module_command(f"{__package__}.allreduce", backend, processes=processes, folder=folder),
            env={**environment(processes, 1), **loopback(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(child, grace=2.0)
        output.seek(0)
        text = output.read()
    seconds = f"{time.monotonic() - start:.0f} s"
    if code == 0 and f"sum of {processes} ranks is right" in text:
        return [Finding(Level.ok, name, f"{processes} processes found each other and added up right, in {seconds}")]
    way = "a run with launch.num_processes=1 needs none of this"
    if backend == "nccl":
        more = f"python -m torch.distributed.run --nproc-per-node {processes} -m {__package__}.allreduce nccl"
        way = f"`NCCL_DEBUG=INFO {more}` says more; launch.num_processes=1 needs none of this"
    why = f"no result within {seconds}" if code is None else _last_error(text) or f"exit code {code}"
    return [Finding(Level.fail, name, why, way)]


def disk(name: str, folder: Path, variable: str) -> list[Finding]:
    """Can the folder (or the one it will be made in) be written, and is there room?"""
    name, way = f"disk {name}", f"{variable} chooses another folder"
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            probe.write(b"skytune doctor")
            probe.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        return [Finding(Level.fail, name, f"{tilde(folder)} cannot be written: {error.strerror}", way)]
    text = f"{size(free)} free under {tilde(folder)}"
    if free < FAIL_BYTES:
        return [Finding(Level.fail, name, text, f"a run needs {size(FAIL_BYTES)}; make room, or {way}")]
    if free < WARN_BYTES:
        return [Finding(Level.warn, name, text, f"models and checkpoints fill this soon; {way}")]
    return [Finding(Level.ok, name, text)]


def hub() -> list[Finding]:
    """Does the model hub answer? A run of the embedded default does not need it."""
    import httpx

    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    way = "give local paths (model.name=/path data=files), a mirror (HF_ENDPOINT=URL), or use the embedded default"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return [Finding(Level.warn, "hub", "not asked: HF_HUB_OFFLINE is set, only downloaded files are used", way)]
    start = time.monotonic()
    try:
        status = httpx.head(address, timeout=HUB_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error).strip()).partition("\n")[0] or type(error).__name__
        return [Finding(Level.warn, "hub", f"{address} does not answer ({why})", way)]
    if status >= 500:
        return [Finding(Level.warn, "hub", f"{address} answers with HTTP {status}", way)]
    return [Finding(Level.ok, "hub", f"{address} answers, in {time.monotonic() - start:.1f} s")]


def tilde(path: str | os.PathLike[str]) -> str:
    """Return a path with the home folder written as `~`."""
    text, own = str(path), str(Path.home())
    return "~" + text[len(own) :] if text == own or text.startswith(own + os.sep) else text


def _driver_without_gpu() -> bool:
    from ..launch.gpus import DRIVER_FILES

    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return not hidden and any(Path(file).exists() for file in DRIVER_FILES)


def _last_error(text: str) -> str:
    """Return the line of a Python traceback that says what was wrong, the first such line of all ranks."""
    pattern = r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Interrupt): .+)$"
    match = re.search(pattern, text, re.MULTILINE)
    return match[1][:300] if match else ""
