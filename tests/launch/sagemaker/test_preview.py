"""`dry_run=true`: the request and its price, without credentials and without asking anybody."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.cli.main import dry
from skytune.config import ConfigError, RunConfig, from_dict
from skytune.launch.sagemaker import Cloud
from skytune.launch.sagemaker.preview import preview
from skytune.launch.sagemaker.request import checked


def nobody(*words: Any) -> Any:
    raise AssertionError("AWS was asked")


@pytest.fixture
def show(
    tmp_path: Path,
    tiny_model: Path,
    sentences: Callable[[int, int], list[tuple[str, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Return a function that returns what is said of a run on SageMaker."""
    pytest.importorskip("botocore")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "rows.csv"
    file.write_text(
        "text,label\n" + "".join(f"{text} {n},{label}\n" for n, (text, label) in enumerate(sentences(60, 3)))
    )

    def run(stack: dict[str, Any] | None = None, **groups: Any) -> str:
        data = {"source": "files", "train": str(file), "text": "text", "label": "label"}
        values = {"data": data, "model": {"name": str(tiny_model)}, "dry_run": True, **groups}
        return preview(dry(from_dict(RunConfig, values)), Cloud(connect=nobody, spoken=nobody), stack or {})

    return run


def request_in(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return found


def test_the_request_is_exact_and_its_price_a_range(show: Callable[..., str]) -> None:
    text = show(compute={"instance_type": "ml.g5.2xlarge", "num_nodes": 2}, sagemaker={"max_hours": 10.0})
    request = request_in(text)
    assert checked(request) == request and request["ResourceConfig"]["InstanceCount"] == 2
    assert "2 x ml.g5.2xlarge: $3.03 an hour (SageMaker's price list, 2026-09-01)" in text
    assert "one job: $0.05 (a minute) to $30.30 (sagemaker.max_hours=10)" in text
    assert "role and bucket: stand-ins" in text
    again = request_in(show(compute={"instance_type": "ml.g5.2xlarge", "num_nodes": 2}, sagemaker={"max_hours": 10.0}))
    assert again["Tags"] == request["Tags"]  # the run key


def test_a_stack_gives_role_bucket_and_region_and_the_secret_stays_out(
    show: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-0123456789")
    arn = "arn:aws:iam::123456789012:role/own"
    stack = {"sagemaker_role": arn, "store": "s3://own/runs", "region": "eu-west-1", "infra": "aws", "use_spot": True}
    text = show(stack, compute={"instance_type": "ml.g5.2xlarge"})
    request = request_in(text)
    assert request["RoleArn"] == arn and request["OutputDataConfig"]["S3OutputPath"].startswith("s3://own/runs/")
    assert ".dkr.ecr.eu-west-1." in request["AlgorithmSpecification"]["TrainingImage"]
    assert request["EnableManagedSpotTraining"] and request["StoppingCondition"]["MaxWaitTimeInSeconds"] == 2 * 86400
    assert "canary" not in text and request["Environment"]["SKYTUNE_SECRET"] == request["TrainingJobName"]
    assert "price unknown: ml.g5.2xlarge in eu-west-1" in text and "stand-ins" not in text
    own = show(stack, compute={"instance_type": "ml.g5.2xlarge"}, sagemaker={"price_per_hour": 2.0})
    assert "1 x ml.g5.2xlarge: $2.00 an hour (sagemaker.price_per_hour)" in own and "with spot less" in own


@pytest.mark.parametrize("groups", [{}, {"compute": {"instance_type": "g5.2xlarge"}}])
def test_elsewhere_there_is_nothing_to_show(show: Callable[..., str], groups: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="dry_run=true shows"):
        show(**groups)
