"""The trained model goes to a bucket, through S3's real protocol (here, where the bucket is)."""

from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.retry import Retry
from skytune.config import UploadConfig, UserError
from skytune.release.destination import copy_to

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def test_the_configuration_comes_last(s3: Any, bucket: str, model: Path) -> None:
    upload = UploadConfig(url=f"s3://{bucket}/models/mine/")
    assert copy_to(model, upload, FAST) == {"url": upload.url}
    names = ["SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json"]
    assert s3.objects(bucket) == [f"models/mine/{name}" for name in names]
    body = s3.client.get_object(Bucket=bucket, Key="models/mine/model.safetensors")["Body"].read()
    assert body == b"model.safetensors"

    def put() -> list[str]:
        paths = [path.rsplit("/", 1)[-1] for method, path in s3.calls if method == "PUT" and "models" in path]
        return [name for name in paths if name != "SHA256SUMS"]

    assert put() == ["model.safetensors", "tokenizer.json", "config.json"]
    copy_to(model, upload, FAST)
    assert len(put()) == 3, "all of it has arrived"


def test_refusals_are_told_in_one_line(s3: Any, bucket: str, model: Path) -> None:
    s3.fault = lambda method, path: (403, "AccessDenied") if method == "PUT" else None
    with pytest.raises(UserError, match=r"no permission for uploading the model") as found:
        copy_to(model, UploadConfig(url=f"s3://{bucket}/models"), FAST)
    assert "\n" not in str(found.value)
