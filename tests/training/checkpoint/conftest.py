"""Stores of every kind for tests: a folder, memory, and S3's real protocol on a socket that can be made to fail."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from skytune.training.checkpoint.backends import S3Backend
from skytune.training.checkpoint.opening import open_backend
from skytune.training.checkpoint.retry import Retry
from skytune.training.checkpoint.store import Store

FAST = Retry(deadline_seconds=10, first_seconds=0.02, longest_seconds=0.1)

XML = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>'


class S3:
    """Moto's S3 behind a little door: `fault(method, path)` may answer (status, code), wait, or let pass (None)."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        self.fault: Callable[[str, str], tuple[int, str] | None] | None = None
        self.lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self.answer, threaded=True, request_handler=MotoRequestHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.calls.append((method, path))
        fault = self.fault(method, path) if self.fault else None
        if fault is None and ("HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ):
            with self.lock:  # moto looks and writes in two moves, S3 in one
                return self.app(environ, start_response)
        if fault is None:
            return self.app(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"].read(length)
        body = b"" if method == "HEAD" else XML.format(code=fault[1]).encode()
        start_response(f"{fault[0]} fault", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    @cached_property
    def client(self) -> Any:
        import boto3

        return boto3.client("s3")

    @cached_property
    def system(self) -> Any:
        """One client for many tests: making one takes a third of a second."""
        return open_backend("s3://any").system

    def objects(self, bucket: str) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    server = S3()
    yield server
    server.server.shutdown()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
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
