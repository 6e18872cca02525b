"""What AWS offers on SageMaker: its containers by region, the machines of its collective library, GPUs by machine."""

import re

from ...config import ComputeConfig, ConfigError, Device, Distribution, SageMakerConfig
from ...pricing.instances import INSTANCES, bare

REGISTRY = "763104351884"
"""Account of AWS's Deep Learning Containers in most regions. Source of all of these: `image_uri_config/pytorch.json` of
aws/sagemaker-python-sdk."""

REGIONS = """
ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-1 ap-southeast-2 ca-central-1 eu-central-1 eu-north-1 eu-west-1
eu-west-2 eu-west-3 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
"""
REGISTRIES = dict.fromkeys(REGIONS.split(), REGISTRY) | {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-south-1": "692866216735",
    "me-south-1": "217643126080",
    "us-gov-west-1": "442386744353",
}

TAGS = {True: "2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker", False: "2.9.0-cpu-py312-ubuntu22.04-sagemaker"}
"""By whether the machine has GPUs: PyTorch 2.9 for training on SageMaker, Python 3.12 and CUDA 13.0 (release
v1.0-pt-sagemaker-2.9.0-tr-py312 of aws/deep-learning-containers). Our pins are installed on top."""

SMDDP = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
"""Machines that AWS's library supports for PyTorch 2 (SageMaker's guide, "Compatibility with the SMDDP library": P4 and
P4de; p3.16xlarge and p3dn.24xlarge had it up to PyTorch 1.13)."""

PLAIN = re.compile(r"[cmrt]\d")
"""Families without an accelerator."""


def gpus_of(instance: str) -> int:
    """Return the GPUs of a machine.

    Raises:
        ConfigError: it has an accelerator that torch cannot use here, or nobody knows how many.
    """
    name = bare(instance)
    if name in INSTANCES:
        return INSTANCES[name][1]
    if PLAIN.match(name):
        return 0
    what = "AWS's own accelerators" if name.startswith(("trn", "inf")) else "GPUs that this version does not know"
    raise ConfigError(f"compute.instance_type={instance}: has {what}; ml.g5.xlarge, ml.p4d.24xlarge and others do")


def image_of(region: str, gpus: int, sagemaker: SageMakerConfig) -> str:
    """Return the container's image.

    Raises:
        ConfigError: AWS's is not known for the region, or has not what is asked for.
    """
    if sagemaker.image:
        return sagemaker.image
    if sagemaker.distribution is Distribution.smddp:
        raise ConfigError(
            "sagemaker.distribution=smddp needs sagemaker.image=: AWS's current PyTorch images lack that library (the "
            "newest that has it is of PyTorch 2.4.1)"
        )
    account = REGISTRIES.get(region)
    if account is None:
        raise ConfigError(f"region {region}: no account of AWS's images is known there: sagemaker.image= names one")
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{account}.dkr.ecr.{region}.{suffix}/pytorch-training:{TAGS[gpus > 0]}"


def check(compute: ComputeConfig, sagemaker: SageMakerConfig) -> None:
    """Refuse what SageMaker does not do, before anything is asked of it.

    Raises:
        ConfigError: with the key.
    """
    for key in ("accelerators", "cpus", "memory", "infra", "zone", "image_id", "keep_on_failure", "resources"):
        if (value := getattr(compute, key)) not in (None, {}):
            raise ConfigError(
                f"compute.{key}={value}: has no effect on SageMaker ({compute.instance_type}); leave it out"
            )
    if sagemaker.distribution is Distribution.smddp:
        if compute.instance_type not in SMDDP:
            raise ConfigError(
                f"sagemaker.distribution=smddp: {compute.instance_type} does not have it, only {', '.join(SMDDP)}; "
                "sagemaker.distribution=torch runs on all"
            )
        if compute.device is Device.cpu:
            raise ConfigError("sagemaker.distribution=smddp needs GPUs: compute.device=auto")
    if sagemaker.keep_seconds and compute.use_spot:
        raise ConfigError("sagemaker.keep_alive: SageMaker keeps no spot machines (compute.use_spot=false)")
    if sagemaker.max_hours * 60 <= 2 * sagemaker.save_minutes:
        raise ConfigError(
            f"sagemaker.max_hours={sagemaker.max_hours:g}: must be more than twice sagemaker.save_minutes="
            f"{sagemaker.save_minutes:g}, for which it saves and ends"
        )
