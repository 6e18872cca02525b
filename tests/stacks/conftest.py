"""An AWS account for the tests of stacks: moto's server, and before it what moto does not know (`aws_edge.py`)."""

import csv
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REGION = "us-east-1"
SIGNED = {
    "AWS_ACCESS_KEY_ID": "AKIATESTSTESTSTESTS0",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


@pytest.fixture(scope="session")
def edge() -> Iterator[Any]:
    """The server."""
    pytest.importorskip("boto3")
    moto_server = pytest.importorskip("moto.server")
    from aws_edge import Edge

    moto = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    made = Edge(f"http://{host}:{port}")
    yield made
    made.server.shutdown()
    moto.stop()


@pytest.fixture
def aws(edge: Any, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Any]:
    """An empty account, and credentials for it in the environment."""
    request = urllib.request.Request(f"{edge.moto}/moto-api/reset", method="POST")
    urllib.request.urlopen(request).read()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**SIGNED, "AWS_ENDPOINT_URL": edge.url}.items():
        monkeypatch.setenv(name, value)
    yield edge
    edge.heal()


@pytest.fixture(scope="session")
def accounts_by_region() -> dict[str, Any]:
    return {}


@pytest.fixture
def connect(aws: Any, accounts_by_region: dict[str, Any]) -> Any:
    """Return a function that opens the account in a region; clients cost more than the calls that they make."""
    from skytune.aws import account

    def at(region: str = REGION) -> Any:
        if region not in accounts_by_region:
            accounts_by_region[region] = account.connect(region)
        return accounts_by_region[region]

    return at


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which SkyPilot has fetched its price lists of AWS."""
    folder = tmp_path / "home"
    price_list(folder)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def price_list(home: Path) -> None:
    """Write a few rows in the form of SkyPilot's price lists."""
    folder = home / ".sky" / "catalogs" / "v8" / "aws"
    folder.mkdir(parents=True)
    columns = ["InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo"]
    columns += ["Price", "SpotPrice", "Region"]
    rows = [
        ["m6i.2xlarge", "", "", 8.0, 32.0, "", 0.384, 0.144, REGION],
        ["m6i.4xlarge", "", "", 16.0, 64.0, "", 0.768, 0.288, REGION],
        ["t3.2xlarge", "", "", 8.0, 32.0, "", 0.3328, 0.1, REGION],
        ["g5.12xlarge", "A10G", 4.0, 48.0, 192.0, "{}", 5.67, 2.3, REGION],
        ["g5.24xlarge", "A10G", 4.0, 96.0, 384.0, "{}", 8.14, 1.9, REGION],
        ["p4d.24xlarge", "A100", 8.0, 96.0, 1152.0, "{}", 21.96, "", "eu-west-1"],
    ]
    with (folder / "vms.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    # ami-03cf127a is one of those that moto has.
    images = [
        ["skypilot:custom-cpu-ubuntu", REGION, "ami-03cf127a"],
        ["skypilot:custom-gpu-ubuntu", REGION, "ami-0gone"],
    ]
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Tag", "Region", "ImageId"], *images])
