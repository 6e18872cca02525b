"""The request to SageMaker: made of the configuration, checked against the service's own model before it is sent."""

import difflib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from ...config import ComputeConfig, ConfigError, Distribution, RunConfig
from ...config.installing import needing
from ..remote.handed_on import worker_environment
from ..remote.machine import processes
from .images import gpus_of, image_of

CHANNEL = "skytune"
"""Input channel that brings code, pins and the job to every machine, as `/opt/ml/input/data/skytune`."""

ENTRY = [
    "python3",
    "-c",
    "import hashlib,os,runpy,sys;r=sys.argv[1];"
    "h=hashlib.sha256(b''.join(open(r+f,'rb').read()for f in('entry.py','sent.zip')));"
    "h.hexdigest()==os.environ['SKYTUNE_SENT']or exit('not the code that was sent');"
    "runpy.run_path(r+'entry.py',run_name='__main__')",
    f"/opt/ml/input/data/{CHANNEL}/",
]
"""Others may write into the bucket: only that is run whose hash stands in the request, which nobody else can sign."""
UNKNOWN = "SHA-256 of entry.py and sent.zip"
DISK_GB = 100
"""Of a machine's volume where nothing is said."""

Request = dict[str, Any]


@dataclass(frozen=True)
class JobPlace:
    """Where a job runs."""

    region: str
    role: str
    url: str
    """What SageMaker itself reads and writes lies under it: a bucket of the region."""


def job_name(run_key: str, stamp: str) -> str:
    """Return the name of a run's job: at most 63 letters, digits and hyphens; names are never used again.

    Args:
        stamp: tells it from the run's other jobs.
    """
    readable, _, digits = run_key.rpartition("-")
    short = re.sub(r"[^a-zA-Z0-9]+", "-", readable)[:28].strip("-") or "run"
    return f"skytune-{short}-{digits}-{stamp}"


def new_name(run_key: str, before: str) -> str:
    """Return the name of a job that begins now: a second's own, and another than that of the job before."""
    while (name := job_name(run_key, datetime.now(UTC).strftime("%y%m%d%H%M%S"))) == before:
        time.sleep(0.1)
    return name


def training_job(
    config: RunConfig,
    compute: ComputeConfig,
    place: JobPlace,
    run_key: str,
    name: str,
    *,
    launch_id: str,
    spot: bool,
    secret: str = "",
    sent: str = UNKNOWN,
) -> Request:
    """Return the arguments of `CreateTrainingJob`.

    Args:
        compute: completed by the stack's.
        launch_id: of all jobs of a launch together.
        secret: name of the secret with what only workers may know; empty for none.
        sent: hash of the code that is run.

    Raises:
        ConfigError: a value that SageMaker would refuse.
    """
    asked, instance = config.sagemaker, str(compute.instance_type)
    gpus = 0 if compute.device.value == "cpu" else gpus_of(instance)
    nodes, each = processes(compute, config.launch, gpus)
    seconds = round(asked.max_hours * 3600)
    environment = {
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        **worker_environment(launch_id, each, gpus, asked.max_hours),
        "SKYTUNE_SENT": sent,
        "SKYTUNE_SAVE_SECONDS": str(round(asked.save_minutes * 60)),
        **({"SKYTUNE_SECRET": secret} if secret else {}),
        **({"SKYTUNE_BACKEND": "smddp"} if asked.distribution is Distribution.smddp else {}),
    }
    code = {
        "S3DataType": "S3Prefix",
        "S3Uri": code_url(place, run_key, name),
        "S3DataDistributionType": "FullyReplicated",
    }
    found: Request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingImage": image_of(place.region, gpus_of(instance), asked),
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ENTRY,
            "EnableSageMakerMetricsTimeSeries": False,
        },
        "RoleArn": place.role,
        "InputDataConfig": [{"ChannelName": CHANNEL, "DataSource": {"S3DataSource": code}, "InputMode": "File"}],
        "OutputDataConfig": {"S3OutputPath": f"{place.url}/{run_key}/sagemaker"},
        "ResourceConfig": {
            "InstanceType": instance,
            "InstanceCount": nodes,
            "VolumeSizeInGB": compute.disk_size or DISK_GB,
            **({"KeepAlivePeriodInSeconds": asked.keep_seconds} if asked.keep_seconds else {}),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
        "EnableManagedSpotTraining": spot,
        "Environment": environment,
        "Tags": [{"Key": "skytune:run", "Value": run_key}],
    }
    if spot:
        wait = asked.max_wait_hours or 2 * asked.max_hours
        found["StoppingCondition"]["MaxWaitTimeInSeconds"] = round(wait * 3600)
    if asked.subnets:
        found["VpcConfig"] = {"Subnets": asked.subnets, "SecurityGroupIds": asked.security_groups}
    return checked(found)


def code_url(place: JobPlace, run_key: str, name: str) -> str:
    """Return where what a job is sent lies."""
    return f"{place.url}/{run_key}/.launch/{name}/"


def checked(request: Request) -> Request:
    """Return a request that fits the service's own model: types, lengths, ranges, patterns, names of machines.

    Raises:
        ConfigError: the first thing that does not.
    """
    shape = _shape()
    from botocore.validate import validate_parameters

    wrong = next(_wrong(request, shape, ""), "")
    if wrong:
        raise ConfigError(f"SageMaker takes no such job: {wrong}")
    validate_parameters(request, shape)  # what is left: types, and members that do not exist
    return request


@cache
def _shape() -> Any:
    """Return the shape of the request in botocore's model, whose reading takes half a second.

    Raises:
        UserError: botocore is missing.
    """
    with needing("aws"):
        import botocore.session
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape


def _wrong(value: Any, shape: Any, key: str) -> Iterator[str]:
    """Yield what does not fit; botocore itself looks at no maximum, pattern or enumeration."""
    about = shape.metadata
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for name, inner in value.items():
            if name in shape.members:
                yield from _wrong(inner, shape.members[name], f"{key}.{name}".lstrip("."))
    elif shape.type_name == "list" and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _wrong(inner, shape.member, f"{key}[{number}]")
    elif shape.type_name == "map" and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _wrong(name, shape.key, f"{key} {name}")
            yield from _wrong(inner, shape.value, f"{key}.{name}")
    size = value if isinstance(value, int) else len(value) if isinstance(value, (str, list, dict)) else 0
    least, most = about.get("min", 0), about.get("max", float("inf"))
    if not least <= size <= most and not isinstance(value, bool):
        yield f"{key} is {_short(value)}, allowed are {least} to {most}" + ("" if size is value else " of them")
    if isinstance(value, str):
        pattern = about.get("pattern", "")
        if pattern and "\\p" not in pattern and not re.fullmatch(pattern, value, re.DOTALL):
            yield f"{key}={_short(value)} does not fit {pattern}"
        if shape.enum and value not in shape.enum:
            near = difflib.get_close_matches(value, shape.enum, n=3)
            yield f"{key}={_short(value)} does not exist" + (f"; near: {', '.join(near)}" if near else "")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
