"""Stores of every kind for tests: a folder, memory, and S3's real protocol on a socket that can be made to fail."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3

from skytune.checkpoint.backends.base import S3Backend
from skytune.checkpoint.retry import Retry
from skytune.checkpoint.store import Store

FAST = Retry(deadline_seconds=10, first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    server = S3()
    yield server
    server.server.shutdown()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.fault = None
    s3_server.calls.clear()


@pytest.fixture
def bucket(s3: S3) -> str:
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def s3_store(s3: S3, bucket: str) -> Store:
    return Store(S3Backend(f"s3://{bucket}/checkpoints", s3.system, f"{bucket}/checkpoints"), "run-1", FAST)


@pytest.fixture
def store(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Store:
    """An empty store of the kind that `url` names."""
    if url == "file":
        return Store.open(f"file://{tmp_path}/store", "run-1", retry=FAST)
    if url == "memory":
        return Store.open(f"memory://{uuid.uuid4().hex}", "run-1", retry=FAST)
    found: Store = request.getfixturevalue("s3_store")
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Kind of store."""
    return str(request.param)
