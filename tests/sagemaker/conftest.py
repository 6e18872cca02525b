"""SageMaker's stand-in, a bucket in it, and runs that are trained there."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROLE = "arn:aws:iam::123456789012:role/skytune-test"


@dataclass
class Sage:
    """The stand-in and how runs go there."""

    standin: Any
    bucket: str
    model: Path
    rows: list[tuple[str, int]]
    more: Callable[[int], list[tuple[str, int]]]
    role: str = ROLE

    def train(self, launcher: Any = None, **groups: Any) -> Any:
        """Train; on SageMaker unless another launcher is given. Returns what `launch.train` does."""
        from datasets import ClassLabel, Dataset, Features, List, Value
        from transformers import AutoTokenizer

        from skytune.aws.sagemaker import launcher as sagemaker
        from skytune.config import RunConfig, from_dict
        from skytune.launch import train

        values: dict[str, Any] = {
            "name": "sage",
            "model": {"name": str(self.model)},
            "compute": {"device": "cpu", "instance_type": "ml.m5.large"},
            "launch": {"num_processes": 1, "threads": 1},
            "batch": {"global_size": 4},
            "log": {"every_steps": 1, "every_seconds": 0.0},
            "optimizer": {"lr": 1e-3},
            "eval": {"every_epochs": 0},
            "tracker": {"names": []},
            "checkpoint": {"store": f"s3://{self.bucket}/runs", "select": "last", "every_steps": 1000},
            "sagemaker": {"role": ROLE, "max_hours": 1.0},
            "max_steps": 10,
            "epochs": 99,
        }
        for key, value in groups.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        tokens = tokenizer([text for text, _ in self.rows], truncation=True)
        features = Features(
            input_ids=List(Value("int32")), attention_mask=List(Value("int8")), labels=ClassLabel(names=["no", "yes"])
        )
        columns = {key: tokens[key] for key in ("input_ids", "attention_mask")}
        split = Dataset.from_dict({**columns, "labels": [label for _, label in self.rows]}, features=features)
        split = split.with_format("torch")
        config = from_dict(RunConfig, values)
        validation = {"validation": split.select(range(8))}
        done = train(config, split, validation, tokenizer, None, launcher or sagemaker())
        done.claim.close()
        return done

    def sent(self, operation: str) -> list[dict[str, Any]]:
        """Return the requests of a kind that SageMaker got."""
        return [body for name, body in self.standin.requests if name == operation]

    def stored(self) -> list[str]:
        """Return what lies in the bucket."""
        pages = self.standin.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]


@pytest.fixture
def sage(
    tmp_path: Path,
    tiny_model: Path,
    sentences: Callable[[int, int], list[tuple[str, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sage]:
    """A SageMaker that runs, and nothing left running in the end."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    monkeypatch.syspath_prepend(str(HERE))
    from standin import StandIn

    from skytune.launch.sagemaker import launcher

    standin = StandIn(tmp_path / "hosts")
    for name in [name for name in os.environ if name.startswith(("AWS_", "SKYTUNE_SKYPILOT"))]:
        monkeypatch.delenv(name)
    for name, value in standin.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.2)
    bucket = f"sage-{tmp_path.name.replace('_', '-').lower()}"[:60].strip("-")
    standin.client.create_bucket(Bucket=bucket)
    yield Sage(standin, bucket, tiny_model, sentences(40, 3), lambda count: sentences(count, 5))
    standin.close()
    sys.modules.pop("waiting", None)
