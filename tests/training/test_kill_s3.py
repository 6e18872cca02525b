"""SIGKILL at random moments, in the middle of an upload included; checkpoints in a bucket (Moto's server, in a process
of its own, speaks S3's real protocol). See `kills`."""

from pathlib import Path
from typing import Any

import pytest
from kills import Tally, check_kills, seed, soak


class Bucket:
    """Stores in one bucket; files on their way there lie in `scratch`."""

    save_seconds = 0.3

    def __init__(self, client: Any, scratch: Path) -> None:
        self.client, self.scratch = client, scratch

    def url(self, name: str) -> str:
        return f"s3://kills/{name}"

    def saving(self, name: str, process: int) -> bool:
        return any(self.scratch.glob(f"skytune-checkpoint-*-{process}-*"))

    def torn(self, name: str) -> bool:
        files: dict[str, set[str]] = {}
        for key in self._objects(name):
            folder, _, file = key.rpartition("/")
            if folder.rpartition("/")[2].startswith("step-"):
                files.setdefault(folder, set()).add(file)
        return any("manifest.json" not in names for names in files.values())

    def finished(self, name: str) -> bool:
        return any(key.endswith("/finished.json") for key in self._objects(name))

    def _objects(self, name: str) -> list[str]:
        found = self.client.list_objects_v2(Bucket="kills", Prefix=f"{name}/")
        assert not found["IsTruncated"]
        return [entry["Key"] for entry in found.get("Contents", [])]


@pytest.fixture(scope="module")
def bucket(s3_process: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3_process["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="kills")
    return Bucket(client, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def lives(s3_process: dict[str, str], bucket: Bucket, forking: Any) -> Any:
    return forking.within(**s3_process, TMPDIR=str(bucket.scratch))


@pytest.mark.slow
def test_killed_at_random_moments(lives: Any, place: Any, bucket: Bucket) -> None:
    tally = Tally(seed())
    check_kills(lives, place, bucket, tally, rounds=10)
    assert tally.kills == 10 and tally.mid_save >= 1 and tally.finished >= 1
    assert max(tally.resumed) > 0


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_killed_two_hundred_times(lives: Any, place: Any, bucket: Bucket) -> None:
    soak(lives, place, bucket)
