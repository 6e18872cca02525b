"""S3 that fails: what passes is tried again, what does not is told at once, and no failure breaks what was there."""

import socket
import threading
import time

import pytest

from skytune.checkpoint.lease import acquire
from skytune.checkpoint.retry import Retry
from skytune.checkpoint.store import Store, rotate
from skytune.config import NotReachable, UserError

FILES = {"model.safetensors": b"m" * 5000, "optimizer.safetensors": b"o" * 9000}
FAST = Retry(deadline_seconds=10, first_seconds=0.02, longest_seconds=0.1)
SHORT = Retry(deadline_seconds=0.3, first_seconds=0.05, longest_seconds=0.1)
QUICK = {"config_kwargs": {"retries": {"total_max_attempts": 1}, "read_timeout": 0.3, "connect_timeout": 0.3}}


@pytest.mark.parametrize("status, code", [(500, "InternalError"), (503, "SlowDown")])
def test_errors_for_a_while_are_outlasted(s3, bucket, status, code):
    store = Store.open(f"s3://{bucket}/checkpoints", "run-1", retry=FAST, options=QUICK)
    store.write(1, FILES)
    left = {"n": 9}

    def fault(method, path):
        left["n"] -= 1
        return (status, code) if left["n"] > 0 and method in ("PUT", "GET") else None

    s3.fault = fault
    store.write(2, FILES)
    assert left["n"] <= 0
    left["n"] = 6
    assert store.newest().manifest.step == 2


def test_a_long_upload_that_fails_once_is_tried_again():
    """The deadline counts from the first failure: what takes longer than it must not be given up at once."""
    now, tries = [0.0], []

    def upload():
        now[0] += 300.0
        tries.append(now[0])
        if len(tries) == 1:
            raise ConnectionResetError("reset")

    Retry(deadline_seconds=120, clock=lambda: now[0], sleep=lambda seconds: None).call(upload, "store", "uploading")
    assert len(tries) == 2


def test_errors_forever_end_at_the_deadline_and_break_nothing(s3, s3_store, bucket):
    s3_store.write(1, FILES)
    store = Store.open(f"s3://{bucket}/checkpoints", "run-1", retry=SHORT, options=QUICK)
    s3.fault = lambda method, path: (503, "SlowDown") if method == "PUT" and "step-00000002" in path else None
    start = time.monotonic()
    with pytest.raises(NotReachable, match=r"s3://bucket-.*/run-1: gave up on writing step-00000002/model.* tries"):
        store.write(2, FILES)
    assert time.monotonic() - start < 30000
    s3.fault = None
    assert store.newest().manifest.step == 1


@pytest.mark.parametrize("size", [5000, 30 * 2**20], ids=["small", "large"])
def test_a_store_that_hangs_counts_as_away(s3, bucket, size):
    """In the middle of a request, which a large one is, or after it. Three times: what goes wrong in a client may
    depend on what arrives first."""
    if size > 5000 and not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this system cannot bound how long a peer does not read")
    store, go = Store.open(f"s3://{bucket}/checkpoints", "run-1", retry=SHORT, options=QUICK), threading.Event()
    s3.fault = lambda method, path: go.wait(600) and None if method == "PUT" else None
    threading.Timer(300, go.set).start()  # a client that waits for ever is given what it waits for, and fails the test
    for _ in range(3):
        with pytest.raises(NotReachable, match="gave up on writing step-00000001/model"):
            store.write(1, {"model.safetensors": bytes(size)})
    assert not go.is_set()
    go.set()
    s3.fault = None
    assert store.newest() is None
    store.write(2, FILES)
    assert store.newest().manifest.step == 2


def test_failing_between_files_and_manifest_leaves_the_one_before(s3, s3_store, bucket):
    s3_store.write(1, FILES)
    store = Store.open(f"s3://{bucket}/checkpoints", "run-1", retry=SHORT)
    s3.fault = lambda method, path: (403, "AccessDenied") if (method, path[-13:]) == ("PUT", "manifest.json") else None
    with pytest.raises(UserError, match="no permission for finishing step-00000002"):
        store.write(2, FILES)
    s3.fault = None
    found = store.newest()
    assert found.manifest.step == 1 and found.skipped == ("step-00000002: its save was not finished",)


@pytest.mark.parametrize(
    "status, code, told",
    [
        (403, "AccessDenied", "no permission for writing a probe"),
        (403, "InvalidAccessKeyId", "the credentials are refused"),
        (400, "ExpiredToken", r"the credentials are refused \(ExpiredToken\): renew them"),
        (301, "PermanentRedirect", "the bucket lies in another region: set AWS_DEFAULT_REGION"),
        (400, "AuthorizationHeaderMalformed", "the bucket lies in another region"),
    ],
)
def test_what_does_not_pass_is_told_before_training_and_not_tried_again(s3, s3_store, status, code, told):
    s3.fault = lambda method, path: (status, code) if method == "PUT" else None
    start = time.monotonic()
    with pytest.raises(UserError, match=f"^s3://bucket-.*/checkpoints/run-1: .*{told}"):
        s3_store.check_writable()
    assert time.monotonic() - start < 300
    assert len([call for call in s3.calls if call[0] == "PUT"]) <= 3


def test_a_bucket_that_is_not_there(s3):
    store = Store.open("s3://no-such-bucket-1/x", "run-1", retry=SHORT)
    with pytest.raises(UserError, match="no such bucket"):
        store.check_writable()
    with pytest.raises(UserError, match="no such bucket"):
        store.newest()
    with pytest.raises(UserError, match="no such bucket"):
        store.write(1, FILES)


def test_no_credentials(s3, bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = Store.open(f"s3://{bucket}/x", "run-1", retry=FAST)
    with pytest.raises(UserError, match="no AWS credentials"):
        store.check_writable()


def test_an_endpoint_that_is_away(s3, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = Store.open(f"s3://{bucket}/x", "run-1", retry=SHORT, options=QUICK)
    with pytest.raises(NotReachable, match="gave up on writing a probe after"):
        store.check_writable()


def test_reading_without_permission_is_not_an_empty_store(s3, s3_store):
    s3_store.write(1, FILES)
    s3.fault = lambda method, path: (403, "AccessDenied") if method in ("GET", "HEAD") else None
    with pytest.raises(UserError, match="no permission for listing"):
        s3_store.newest()


def test_big_files_go_in_parts(s3, s3_store, tmp_path):
    big = bytes(range(256)) * (60 * 2**20 // 256)
    s3_store.write(1, {"model.safetensors": big})
    found = s3_store.newest(into=tmp_path)
    assert found.files["model.safetensors"].read_bytes() == big


def test_the_manifest_goes_last_on_the_way_in_and_first_on_the_way_out(s3, s3_store):
    s3_store.write(1, FILES)
    puts = [path.rsplit("/", 1)[-1] for method, path in s3.calls if method == "PUT"]
    assert puts[-4:] == [*FILES, "manifest.json", "completed.json"]
    s3_store.write(2, FILES)
    s3.calls.clear()
    rotate(s3_store, 1, newest=2)
    deleting = [(method, path.rsplit("/", 1)[-1]) for method, path in s3.calls if method in ("DELETE", "POST")]
    assert deleting == [("DELETE", "manifest.json"), ("POST", s3_store.backend.root.split("/")[0])]
    assert not any("step-00000001" in key for key in s3.objects(s3_store.backend.root.split("/")[0]))


def test_a_lease_where_conditions_are_ignored_or_unknown_is_advisory(s3, s3_store):
    lease = acquire(s3_store, "one")
    assert lease.atomic
    lease.release()
    s3.fault = lambda method, path: (501, "NotImplemented") if method == "PUT" and conditional[0] else None
    conditional = [True]
    write = s3_store.backend.write

    def plainly(path, data):
        conditional[0] = False
        write(path, data)

    s3_store.backend.write = plainly
    lease = acquire(s3_store, "two")
    assert not lease.atomic
    lease.release()
