"""Artifact stores without a ZenML server or database: the real store classes, on a temporary folder and a local S3."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

os.environ.setdefault("ZENML_ANALYTICS_OPT_IN", "false")


def _component(flavor: str, config: Any, cls: type) -> Any:
    from zenml.enums import StackComponentType
    from zenml.utils.time_utils import utc_now

    now = utc_now()
    return cls(
        name="store",
        id=uuid4(),
        config=config,
        flavor=flavor,
        type=StackComponentType.ARTIFACT_STORE,
        user=uuid4(),
        created=now,
        updated=now,
    )


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on this machine."""
    moto_server = pytest.importorskip("moto.server")
    pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def s3_endpoint(s3_server: str) -> str:
    """The address of the S3 server, with a bucket `bucket`: all servers of a process share what Moto holds, and other
    tests empty it."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=s3_server, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
    )
    client.create_bucket(Bucket="bucket")
    return s3_server


@pytest.fixture
def stores() -> Callable[[Path], Any]:
    """Makes an artifact store in a folder of this disk."""

    def make(root: Path) -> Any:
        from zenml.artifact_stores.local_artifact_store import LocalArtifactStore, LocalArtifactStoreConfig

        return _component("local", LocalArtifactStoreConfig(path=str(root)), LocalArtifactStore)

    return make


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, stores: Callable[[Path], Any]) -> tuple[Any, str]:
    """An artifact store and the address of one artifact in it: once on this disk, once on S3."""
    if request.param == "local":
        root = tmp_path / "store"
        root.mkdir()
        return stores(root), str(root / "artifact")
    endpoint = request.getfixturevalue("s3_endpoint")
    from zenml.integrations.s3.artifact_stores import S3ArtifactStore
    from zenml.integrations.s3.flavors import S3ArtifactStoreConfig

    config = S3ArtifactStoreConfig(
        path="s3://bucket",
        key="x",
        secret="x",
        client_kwargs={"endpoint_url": endpoint, "region_name": "us-east-1"},
    )
    return _component("s3", config, S3ArtifactStore), f"s3://bucket/{uuid4()}"


@pytest.fixture
def round_trip(place: tuple[Any, str]) -> Callable[[type, Any], Any]:
    """Save with one instance of a materializer, as ZenML does; load with another."""
    store, uri = place

    def go(materializer: type, data: Any) -> Any:
        materializer(uri, store).save(data)
        return materializer(uri, store).load(type(data))

    return go


@pytest.fixture
def names_in_store(place: tuple[Any, str]) -> Callable[[], list[str]]:
    """The files of the artifact, relative to it."""
    store, uri = place

    def walk(folder: str) -> list[str]:
        if not store.exists(folder):
            return []
        found = []
        for name in map(os.fspath, store.listdir(folder)):
            name = name.rstrip("/").rpartition("/")[2]
            inner = f"{folder}/{name}"
            found += walk(inner) if store.isdir(inner) else [inner.removeprefix(uri + "/")]
        return sorted(found)

    return lambda: walk(uri)
