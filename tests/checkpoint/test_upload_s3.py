"""The trained model goes to a bucket, through S3's real protocol (here, where the bucket is)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skytune.checkpoint.retry import Retry
from skytune.config import UploadConfig
from skytune.training.callbacks.upload import Upload

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """What the callback needs of a run."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return SimpleNamespace(world=SimpleNamespace(main=True), job=SimpleNamespace(model=folder), report={})


def test_the_configuration_comes_last(s3: Any, bucket: str, run: Any) -> None:
    Upload(UploadConfig(url=f"s3://{bucket}/models/mine/"), FAST).on_model_saved(run)
    assert run.report == {"uploaded": f"s3://{bucket}/models/mine/"}
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert s3.objects(bucket) == [f"models/mine/{name}" for name in names]
    body = s3.client.get_object(Bucket=bucket, Key="models/mine/model.safetensors")["Body"].read()
    assert body == b"model.safetensors"
    put = [path.rsplit("/", 1)[-1] for method, path in s3.calls if method == "PUT" and "models" in path]
    assert put == ["model.safetensors", "tokenizer.json", "config.json"]


def test_refusals_are_told_in_one_line(s3: Any, bucket: str, run: Any) -> None:
    s3.fault = lambda method, path: (403, "AccessDenied") if method == "PUT" else None
    Upload(UploadConfig(url=f"s3://{bucket}/models"), FAST).on_model_saved(run)
    assert "no permission for uploading the model" in run.report["upload_failed"]
    assert "\n" not in run.report["upload_failed"]
