"""SkyPilot's price list of AWS, read from the file in which SkyPilot keeps it: importing SkyPilot takes seconds."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError, UserError
from ..config.installing import needing

FAMILIES = ("m6i", "m7i", "r6i", "r7i", "c6i", "c7i")
"""Where SkyPilot looks for a machine without GPU (`sky/catalog/aws_catalog.py`)."""

DEFAULT_CPUS = "8+"
"""What it takes if nothing is said."""

CPU_IMAGE, GPU_IMAGE = "skypilot:custom-cpu-ubuntu", "skypilot:custom-gpu-ubuntu"
"""SkyPilot's own machine images, by tag (`sky/clouds/aws.py`)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One instance type in one zone; prices in US dollars an hour, memory in GiB."""

    instance_type: str
    gpu: str
    gpus: int
    cpus: float
    memory: float
    price: float
    spot_price: float
    region: str


def folder() -> Path | None:
    """Return the folder of SkyPilot's newest price lists on this machine; None if it has fetched none."""
    found = sorted((Path.home() / ".sky" / "catalogs").glob("v*/aws/vms.csv"), key=lambda file: file.stat().st_mtime)
    return found[-1].parent if found else None


def fetch() -> Path:
    """Have SkyPilot fetch its price lists where there are none; return their folder.

    Raises:
        UserError: SkyPilot is not installed, or the lists cannot be fetched.
    """
    found = folder()
    if found is not None:
        return found
    with needing("aws"):
        from sky.catalog.common import read_catalog
    try:
        for name in ("aws/vms.csv", "aws/images.csv"):
            len(read_catalog(name))  # fetched when it is first looked at
    except Exception as error:
        raise UserError(
            f"SkyPilot cannot fetch its price lists ({type(error).__name__}): is GitHub in reach?"
        ) from error
    found = folder()
    if found is None:
        raise UserError("SkyPilot has fetched no price lists; `sky show-gpus` says why")
    return found


def rows(region: str, place: Path) -> Iterator[Row]:
    """Yield what is sold in a region."""
    with (place / "vms.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["Region"] == region:
                yield Row(
                    instance_type=line["InstanceType"],
                    gpu=line["AcceleratorName"] or "",
                    gpus=int(_number(line["AcceleratorCount"])),
                    cpus=_number(line["vCPUs"]),
                    memory=_number(line["MemoryGiB"]),
                    price=_number(line["Price"], float("inf")),
                    spot_price=_number(line["SpotPrice"], float("inf")),
                    region=line["Region"],
                )


def choose(machine: Mapping[str, Any], region: str, place: Path) -> Row:
    """Return the cheapest machine that has what is asked for, as SkyPilot would choose it.

    Args:
        machine: keys of `compute`: `accelerators`, `cpus`, `memory`, `use_spot`.

    Raises:
        ConfigError: none is sold in the region; the message says where there are some.
    """
    gpu, count = _gpus(machine.get("accelerators"))
    cpus, memory = machine.get("cpus"), machine.get("memory")
    if not gpu and cpus is None and memory is None:
        cpus = DEFAULT_CPUS

    def fits(row: Row) -> bool:
        if gpu:
            size = row.gpu.lower() == gpu.lower() and row.gpus == count
        else:
            size = row.instance_type.split(".")[0] in FAMILIES
        return size and _enough(row.cpus, cpus) and _enough(row.memory, memory)

    spot = bool(machine.get("use_spot"))
    found = sorted(
        (row for row in rows(region, place) if fits(row)), key=lambda row: row.spot_price if spot else row.price
    )
    if not found:
        asked = ", ".join(f"{key} {machine[key]}" for key in ("accelerators", "cpus", "memory") if machine.get(key))
        known = sorted({f"{row.gpu}:{row.gpus}" for row in rows(region, place) if row.gpu})
        raise ConfigError(f"no machine with {asked} in {region}" + (f"; there are {', '.join(known)}" if gpu else ""))
    return found[0]


def find_row(instance_type: str, region: str, place: Path) -> Row | None:
    """Return what the price list has of an instance type in a region; None if it is not sold there."""
    return next((row for row in rows(region, place) if row.instance_type == instance_type), None)


def image(tag: str, region: str, place: Path) -> str | None:
    """Return the id of SkyPilot's machine image in a region; None where the list has none."""
    file = place / "images.csv"
    if not file.is_file():
        return None
    with file.open(newline="", encoding="utf-8") as lines:
        found = (line for line in csv.DictReader(lines) if line["Tag"] == tag and line["Region"] == region)
        return next((line["ImageId"] for line in found), None)


def _gpus(text: Any) -> tuple[str, int]:
    """Return (name, count) of e.g. `A10G:4`."""
    name, _, count = str(text or "").partition(":")
    return name, int(count or 1)


def _enough(have: float, asked: Any) -> bool:
    """Whether a number is what is asked for: `8` exactly, `8+` at least."""
    if asked is None:
        return True
    text = str(asked)
    return have >= float(text[:-1]) if text.endswith("+") else have == float(text)


def _number(text: str | None, missing: float = 0.0) -> float:
    return float(text) if text else missing
