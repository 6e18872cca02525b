"""What the stand-in sells: regions, zones, instance types, prices, quotas and machine images.

The prices are rounded from AWS's public list; a type counts as real here once it has a row in `TYPES`. What SkyPilot
reads as its catalog (`write_skypilot_catalog`) and what EC2 answers are written from the same tables.
"""

import csv
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

ACCOUNT = "123456789012"

REGIONS: dict[str, dict[str, str]] = {
    "us-east-1": {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"},
    "us-west-2": {"us-west-2a": "usw2-az2", "us-west-2b": "usw2-az1"},
}
"""Region -> zone -> the zone's id, as moto names them."""

MARKUP = {"us-east-1": 1.0, "us-west-2": 1.0}
"""A region's on-demand prices as a multiple of the table's."""

SPOT_MARKUP = {"us-east-1a": 1.0, "us-east-1b": 1.05, "us-west-2a": 1.1, "us-west-2b": 1.15}
"""Spot prices differ by zone: so there is one order in which SkyPilot tries them."""


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One row of the price list; money in US dollars an hour, memory in GiB."""

    name: str
    cpus: int
    memory: float
    price: float
    spot_price: float
    gpu: str = ""
    gpus: int = 0
    gpu_memory: float = 0

    @property
    def quota(self) -> str:
        """Which of the account's quotas it counts against."""
        return {"g": "G", "p": "P"}.get(self.name[0], "Standard")


def _type(name: str, cpus: int, memory: float, price: float, spot: float, gpus: str = "") -> InstanceType:
    count, _, rest = gpus.partition("x")
    gpu, _, gpu_memory = rest.partition(":")
    return InstanceType(
        name=name,
        cpus=cpus,
        memory=memory,
        price=price,
        spot_price=spot,
        gpu=gpu,
        gpus=int(count or 0),
        gpu_memory=float(gpu_memory or 0),
    )


TYPES: dict[str, InstanceType] = {
    row.name: row
    for row in (
        _type("m5.large", 2, 8, 0.096, 0.035),
        _type("m5.xlarge", 4, 16, 0.192, 0.07),
        _type("m5.2xlarge", 8, 32, 0.384, 0.14),
        _type("m5.4xlarge", 16, 64, 0.768, 0.28),
        _type("m6i.large", 2, 8, 0.096, 0.036),
        _type("m6i.xlarge", 4, 16, 0.192, 0.072),
        _type("m6i.2xlarge", 8, 32, 0.384, 0.144),
        _type("m6i.4xlarge", 16, 64, 0.768, 0.288),
        _type("c6i.2xlarge", 8, 16, 0.34, 0.13),
        _type("r6i.2xlarge", 8, 64, 0.504, 0.18),
        _type("g4dn.xlarge", 4, 16, 0.526, 0.2, "1xT4:16"),
        _type("g4dn.12xlarge", 48, 192, 3.912, 1.5, "4xT4:16"),
        _type("g5.xlarge", 4, 16, 1.006, 0.4, "1xA10G:24"),
        _type("g5.2xlarge", 8, 32, 1.212, 0.48, "1xA10G:24"),
        _type("g5.12xlarge", 48, 192, 5.672, 2.3, "4xA10G:24"),
        _type("g5.48xlarge", 192, 768, 16.288, 6.6, "8xA10G:24"),
        _type("p4d.24xlarge", 96, 1152, 21.958, 9.1, "8xA100:40"),
        _type("p5.48xlarge", 192, 2048, 55.04, 22.4, "8xH100:80"),
    )
}

QUOTAS: dict[tuple[str, bool], tuple[str, str, int]] = {
    ("Standard", False): ("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 256),
    ("Standard", True): ("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 256),
    ("G", False): ("L-DB2E81BA", "Running On-Demand G and VT instances", 384),
    ("G", True): ("L-3819A6DF", "All G and VT Spot Instance Requests", 384),
    ("P", False): ("L-417A185B", "Running On-Demand P instances", 384),
    ("P", True): ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", 384),
}
"""(family, spot) -> AWS's own quota code and name, and how many vCPUs the account may run of it in a region."""

IMAGES: dict[str, str] = {
    "skypilot:custom-cpu-ubuntu": "skypilot-aws-cpu-ubuntu",
    "skypilot:custom-gpu-ubuntu": "skypilot-aws-gpu-ubuntu",
    "skypilot:custom-gpu-ubuntu-2204": "skypilot-aws-gpu-ubuntu-2204",
}
"""SkyPilot's image tags and the images' names. All of them boot the same machine."""

# SkyPilot asks EC2 by name for the image of machines with EFA.
_EFA_IMAGE = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20250808"


def image_id(name: str, region: str) -> str:
    """Return the id of an image in a region: made up, always the same."""
    return f"ami-{sha256(f'{name} {region}'.encode()).hexdigest()[:17]}"


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone[:-1]


def price(name: str, zone: str, spot: bool) -> float:
    """Return the price of an instance type in a zone, in US dollars an hour."""
    row = TYPES[name]
    return round(row.spot_price * SPOT_MARKUP[zone] if spot else row.price * MARKUP[region_of(zone)], 6)


def ec2_images(region: str) -> list[dict[str, Any]]:
    """Return a region's images, as moto's `Ami` takes them."""
    return [
        {
            "ami_id": image_id(name, region),
            "name": name,
            "description": name,
            "state": "available",
            "public": True,
            "owner_id": "195275664570",
            "owner_alias": "amazon",
            "image_location": f"skypilot/{name}",
            "sriov": "simple",
            "root_device_type": "ebs",
            "root_device_name": "/dev/sda1",
            "image_type": "machine",
            "platform": "",
            "architecture": "x86_64",
            "virtualization_type": "hvm",
            "hypervisor": "xen",
        }
        for name in (*IMAGES.values(), _EFA_IMAGE)
    ]


def write_skypilot_catalog(home: Path) -> None:
    """Write the price list where SkyPilot of the user with this home looks for it.

    Without a checksum beside a file SkyPilot takes it as the user's own and never fetches another.
    """
    folder = home / ".sky" / "catalogs" / "v8"
    (folder / "aws").mkdir(parents=True, exist_ok=True)
    (folder / "common").mkdir(exist_ok=True)
    _write(folder / "aws" / "vms.csv", _VM_COLUMNS, [_vm_row(row, zone) for row in TYPES.values() for zone in _zones()])
    _write(
        folder / "aws" / "images.csv",
        ["Tag", "Region", "OS", "OSVersion", "ImageId", "CreationDate", "BaseImageId"],
        [
            [tag, region, "ubuntu", "22.04", image_id(name, region), "20241104", image_id(name, region)]
            for tag, name in IMAGES.items()
            for region in REGIONS
        ],
    )
    _write(
        folder / "aws" / "instance_quota_mapping.csv",
        ["InstanceType", "OnDemandInstanceCode", "SpotInstanceCode"],
        [[row.name, QUOTAS[row.quota, False][0], QUOTAS[row.quota, True][0]] for row in TYPES.values()],
    )
    gpus = sorted({row.gpu for row in TYPES.values() if row.gpu})
    _write(folder / "common" / "accelerators.csv", ["AcceleratorName", "Clouds"], [[gpu, "['AWS']"] for gpu in gpus])


_VM_COLUMNS = [
    *["InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price", "SpotPrice"],
    *["Region", "AvailabilityZone", "Arch"],
]


def _zones() -> list[str]:
    return [zone for zones in REGIONS.values() for zone in zones]


def _vm_row(row: InstanceType, zone: str) -> list[object]:
    region = region_of(zone)
    info = ""
    if row.gpus:
        mib = int(row.gpu_memory * 1024)
        gpu = {"Name": row.gpu, "Manufacturer": "NVIDIA", "Count": float(row.gpus), "MemoryInfo": {"SizeInMiB": mib}}
        info = str({"Gpus": [gpu], "TotalGpuMemoryInMiB": mib * row.gpus})
    return [
        *[row.name, row.gpu, float(row.gpus) if row.gpus else "", float(row.cpus), float(row.memory), info],
        *[price(row.name, zone, False), price(row.name, zone, True), region, REGIONS[region][zone], "x86_64"],
    ]


def _write(path: Path, columns: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
