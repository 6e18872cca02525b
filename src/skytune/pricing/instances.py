"""Instances by name: how many devices an EC2 instance has, and of which kind. Prices are not here: they change."""

from ..config.schema.sagemaker import PREFIX

_SIZES: dict[str, tuple[str, dict[int, str]]] = {
    "g4dn": ("T4", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge", 8: "metal"}),
    "g5": ("A10G", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}),
    "g6": ("L4", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}),
    "g6e": ("L40S", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}),
    "p3": ("V100", {1: "2xlarge", 4: "8xlarge", 8: "16xlarge"}),
    "p3dn": ("V100", {8: "24xlarge"}),
    "p4d": ("A100", {8: "24xlarge"}),
    "p4de": ("A100-80GB", {8: "24xlarge"}),
    "p5": ("H100", {1: "4xlarge", 8: "48xlarge"}),
    "p5en": ("H200", {8: "48xlarge"}),
}

INSTANCES: dict[str, tuple[str, int]] = {
    f"{family}.{size}": (accelerator, devices)
    for family, (accelerator, sizes) in _SIZES.items()
    for devices, names in sizes.items()
    for size in names.split()
}
"""Accelerator and how many of it, by EC2 instance type (AWS's instance pages; the names are SkyPilot's)."""


def bare(instance: str) -> str:
    """Return EC2's name of an instance that SageMaker calls `ml.` and that name."""
    return instance.removeprefix(PREFIX)
