"""What `dry_run=true` says: the request, as it would be sent, and what a job costs at most. AWS is not asked."""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...config import RunConfig
from ...pricing.cost import dollars
from ...tasks.prepared import prepared
from ..remote.handed_on import secrets
from ..run_job import identified
from .jobs import Cloud
from .launcher import SageMakerLauncher, price_of
from .request import job_name, training_job

NOBODY = "000000000000"
REGION = "us-east-1"
"""Where neither the run nor the environment says one."""


def preview(config: RunConfig, cloud: Cloud, stack: Mapping[str, Any]) -> str:
    """Return the request and its price for a person.

    Raises:
        UserError: data that cannot be read (they are part of the run key); what SageMaker would refuse.
    """
    launcher, made_up = SageMakerLauncher(cloud, stack), []
    compute = launcher.machine(config)
    variables = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
    region = compute.region or next(filter(None, variables), REGION)
    config = launcher.completed(config)
    if config.sagemaker.role is None and launcher.role is None:
        launcher.role = f"arn:aws:iam::{NOBODY}:role/skytune-aws-{region}-sagemaker"
        made_up.append("role")
    if config.checkpoint.store is None:
        store = f"s3://skytune-aws-{NOBODY}-{region}/runs"
        config = replace(config, checkpoint=replace(config.checkpoint, store=store))
        made_up.append("bucket")
    place = launcher.places(config, region)[0]
    found = prepared(config, config.seed)
    splits = {"train": found.train, "validation": found.validation, **found.sets, "test": found.test}
    config, _, _, key = identified(config, splits)
    name = job_name(key, datetime.now(UTC).strftime("%y%m%d%H%M%S"))
    secret = name if secrets(config) else ""
    request = training_job(
        config, compute, place, key, name, launch_id=uuid.uuid4().hex, spot=bool(compute.use_spot), secret=secret
    )
    lines = [f"CreateTrainingJob in {region}, as it would be sent (nothing is):", json.dumps(request, indent=2)]
    if made_up:
        lines.append(
            f"{' and '.join(made_up)}: stand-ins; `python src/stack.py register aws --sagemaker` makes real ones"
        )
    return "\n".join([*lines, *_prices(config, request, region)])


def _prices(config: RunConfig, request: Mapping[str, Any], region: str) -> list[str]:
    asked, machines = config.sagemaker, request["ResourceConfig"]
    kind, nodes = machines["InstanceType"], machines["InstanceCount"]
    price, source = price_of(asked, kind, region)
    if price is None:
        return [f"price unknown: {kind} in {region} is in no table here; sagemaker.price_per_hour= says it"]
    hourly = nodes * price
    cheaper = ", with spot less, by how much is said afterwards" if request["EnableManagedSpotTraining"] else ""
    lines = [
        f"{nodes} x {kind}: {dollars(hourly)} an hour ({source})",
        f"one job: {dollars(hourly / 60)} (a minute) to {dollars(hourly * asked.max_hours)} "
        f"(sagemaker.max_hours={asked.max_hours:g}){cheaper}",
    ]
    if kept := asked.keep_seconds:
        lines.append(f"machines kept after it: up to {dollars(hourly * kept / 3600)} more (sagemaker.keep_alive)")
    return lines
