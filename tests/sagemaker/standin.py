"""A SageMaker that runs: training jobs over HTTP, their containers as processes of this machine.

    python tests/sagemaker/standin.py        starts it by hand and prints the variables that lead to it (Ctrl-C ends it)

Whatever is no request to SageMaker is Moto's (S3, CloudWatch Logs, Secrets Manager, IAM, STS, Service Quotas). A host
is a process with a mount namespace of its own: it has `/opt/ml`, `/tmp/skytune` and `/etc/hosts` of a real one, and
with a network of its own, whose eth0 leads to the other hosts and to these servers, and nowhere else. Where the first
is not permitted (no root), `SKYTUNE_OPT_ML` and `SKYTUNE_SCRATCH` say where they are, and hosts are 127.0.0.x; where
the second is not, all share this machine's loopback, and jobs of several hosts cannot run at once. The "image" is this
Python.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "helpers")]

from s3_server import S3  # noqa: E402

from skytune.launch.processes import end_group  # noqa: E402

ACCOUNT = "123456789012"
GROUP = "/aws/sagemaker/TrainingJobs"
NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
SPOT_DISCOUNT = 0.3
"""Share of the full price that a spot job pays here."""


@cache
def namespaces() -> bool:
    """Whether processes can have mounts of their own here."""
    words = ["unshare", "-m", "mount", "--bind", "/tmp", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class Network:
    """A bridge on this machine, and network namespaces on it, one for every host."""

    def __init__(self) -> None:
        self.name = self.part = ""
        """Both empty where networks are not permitted."""
        self.hosts: list[str] = []
        for number in range(1, 255) if namespaces() else ():
            if _ip("link", "add", f"sage{number}", "type", "bridge"):
                self.name, self.part = f"sage{number}", f"10.231.{number}"
                _ip("addr", "add", f"{self.gateway}/24", "dev", self.name)
                _ip("link", "set", self.name, "up")
                return

    def __bool__(self) -> bool:
        return bool(self.name)

    @property
    def gateway(self) -> str:
        """The address of this machine."""
        return f"{self.part}.1" if self else "127.0.0.1"

    def join(self) -> tuple[str, str]:
        """Return (namespace, address) of another host."""
        number = len(self.hosts) + 2
        name, cable, address = f"{self.name}-{number}", f"{self.name}c{number}", f"{self.part}.{number}"
        self.hosts.append(name)
        for words in (
            ["netns", "add", name],
            ["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["link", "set", cable, "master", self.name, "up"],
            ["-n", name, "addr", "add", f"{address}/24", "dev", "eth0"],
            ["-n", name, "link", "set", "eth0", "up"],
            ["-n", name, "link", "set", "lo", "up"],
        ):
            assert _ip(*words), words
        return name, address

    def close(self) -> None:
        """Take all of it away."""
        for name in self.hosts:
            _ip("netns", "del", name)
        if self:
            _ip("link", "del", self.name)


def _ip(*words: str) -> bool:
    try:
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@dataclass
class Host:
    """One machine of a job while it runs."""

    name: str
    folder: Path
    process: "subprocess.Popen[bytes]"
    reader: threading.Thread


@dataclass
class TrainingJob:
    """A job, from its request to its end."""

    request: dict[str, Any]
    region: str
    made: float = field(default_factory=time.time)
    status: str = "InProgress"
    secondary: str = "Starting"
    reason: str = ""
    trained: float = 0.0
    """Seconds of training, without waiting."""
    ended: float | None = None
    pool: str = ""
    """Available, Terminated, Reused, InUse."""
    pool_until: float = 0.0
    hosts: list[Host] = field(default_factory=list)
    starts: int = 0
    signals: list[str] = field(default_factory=list)
    stop: str = ""
    """Why it is being stopped."""
    interrupted: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return str(self.request["TrainingJobName"])

    @property
    def spot(self) -> bool:
        return bool(self.request.get("EnableManagedSpotTraining"))


class StandIn(S3):
    """The servers. What a test sets: `no_capacity`, `quota`, `when`, `grace`."""

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        super().__init__(self.network.gateway)
        self.folder = folder
        self.jobs: dict[str, TrainingJob] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.no_capacity: set[tuple[str, bool]] = set()
        """(region, spot) where there are no machines."""
        self.quota: dict[str, int] = {}
        """Machines by instance type; what is not here is not limited."""
        self.when: dict[str, Callable[[TrainingJob], None]] = {}
        """Pattern of a line of the first host's: what happens, once, when it says so (`interrupt`, `time_up`)."""
        self.entry: list[str] = []
        """What containers run instead of what the request says."""
        self.grace = 60.0
        """Between SIGTERM and SIGKILL (120 on the real one)."""
        self.interrupt_grace = 60.0
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []

    # HTTP.

    def answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if not target.startswith(("SageMaker.", "ServiceQuotasV20190624.List")):
            return super().answer(environ, start_response)
        body = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        found = re.search(r"Credential=[^/]+/\d+/([a-z0-9-]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        region, operation = found[1] if found else "us-east-1", target.partition(".")[2]
        self.requests.append((operation, body))
        try:
            with self._lock:
                status, answer = "200 OK", getattr(self, f"do_{operation}")(region, body)
        except Refused as error:
            status, answer = "400 Bad Request", {"__type": error.code, "message": str(error)}
        data = json.dumps(answer).encode()
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(data)))]
        start_response(status, headers)
        return [data]

    def do_ListServiceQuotas(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        assert body["ServiceCode"] == "sagemaker"
        return {
            "Quotas": [
                {"QuotaName": f"{kind} for training job usage", "QuotaCode": "L-0123", "Value": float(most)}
                for kind, most in self.quota.items()
            ]
        }

    def do_CreateTrainingJob(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        self._validate(body)
        name, machines = body["TrainingJobName"], body["ResourceConfig"]
        if name in self.jobs:
            raise Refused(
                "ResourceInUse", f"Training job names must be unique within an AWS account and region: {name}"
            )
        for uri in [body["OutputDataConfig"]["S3OutputPath"], *map(_uri, body["InputDataConfig"])]:
            self._check_bucket(uri, region)
        kind, count = machines["InstanceType"], machines["InstanceCount"]
        used = sum(
            job.request["ResourceConfig"]["InstanceCount"]
            for job in self.jobs.values()
            if job.request["ResourceConfig"]["InstanceType"] == kind and job.ended is None
        )
        if used + count > self.quota.get(kind, count + used):
            raise Refused(
                "ResourceLimitExceeded",
                f"The account-level service limit '{kind} for training job usage' is {self.quota[kind]} Instances, "
                f"with current utilization of {used} Instances and a request delta of {count} Instances.",
            )
        job = self.jobs[name] = TrainingJob(body, region)
        thread = threading.Thread(target=self._live, args=(job,), daemon=True, name=name)
        self._threads.append(thread)
        thread.start()
        return {"TrainingJobArn": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"}

    def do_DescribeTrainingJob(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(region, body)
        self._look_at_pool(job)
        found = {
            **{key: job.request[key] for key in ("TrainingJobName", "RoleArn", "ResourceConfig", "StoppingCondition")},
            "TrainingJobArn": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{job.name}",
            "AlgorithmSpecification": job.request["AlgorithmSpecification"],
            "TrainingJobStatus": job.status,
            "SecondaryStatus": job.secondary,
            "CreationTime": job.made,
            "EnableManagedSpotTraining": job.spot,
            "Environment": job.request.get("Environment", {}),
            "TrainingTimeInSeconds": round(job.trained),
            "BillableTimeInSeconds": round(job.trained * (SPOT_DISCOUNT if job.spot else 1.0) + 0.5),
        }
        if not job.trained:
            del found["TrainingTimeInSeconds"], found["BillableTimeInSeconds"]
        if job.reason:
            found["FailureReason"] = job.reason
        if job.pool:
            found["WarmPoolStatus"] = {"Status": job.pool}
        return found

    def do_StopTrainingJob(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(region, body)
        if job.ended is not None:
            raise Refused(
                "ValidationException", "The request was rejected because the training job is in status Stopped"
            )
        if not job.stop:
            job.status, job.stop = "Stopping", "Stopped"
        return {}

    def do_ListTrainingJobs(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        found = []
        for job in sorted(self.jobs.values(), key=lambda job: -job.made):
            self._look_at_pool(job)
            wanted = body.get("StatusEquals", job.status), body.get("WarmPoolStatusEquals", job.pool)
            if job.region == region and body.get("NameContains", "") in job.name and wanted == (job.status, job.pool):
                found.append(
                    {
                        "TrainingJobName": job.name,
                        "TrainingJobArn": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{job.name}",
                        "CreationTime": job.made,
                        "TrainingJobStatus": job.status,
                    }
                )
        return {"TrainingJobSummaries": found}

    def do_UpdateTrainingJob(self, region: str, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(region, body)
        seconds = body["ResourceConfig"]["KeepAlivePeriodInSeconds"]
        job.pool_until = job.ended + seconds if job.ended else 0.0
        self._look_at_pool(job)
        return {"TrainingJobArn": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{job.name}"}

    def _job(self, region: str, body: dict[str, Any]) -> TrainingJob:
        job = self.jobs.get(body["TrainingJobName"])
        if job is None or job.region != region:
            raise Refused("ResourceNotFound", f"Requested resource not found: {body['TrainingJobName']}")
        return job

    def _validate(self, body: dict[str, Any]) -> None:
        import botocore.session
        from botocore.exceptions import ParamValidationError
        from botocore.validate import validate_parameters

        model = botocore.session.get_session().get_service_model("sagemaker")
        try:
            validate_parameters(body, model.operation_model("CreateTrainingJob").input_shape)
        except ParamValidationError as error:
            raise Refused("ValidationException", str(error)) from error
        if body.get("EnableManagedSpotTraining"):
            limits = body["StoppingCondition"]
            if limits.get("MaxWaitTimeInSeconds", 0) < limits["MaxRuntimeInSeconds"]:
                raise Refused("ValidationException", "MaxWaitTimeInSeconds must be at least MaxRuntimeInSeconds")
            if body["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
                raise Refused("ValidationException", "KeepAlivePeriodInSeconds does not go with managed spot training")

    def _check_bucket(self, uri: str, region: str) -> None:
        bucket = uri.removeprefix("s3://").partition("/")[0]
        try:
            place = self.client.get_bucket_location(Bucket=bucket)["LocationConstraint"] or "us-east-1"
        except self.client.exceptions.ClientError as error:
            raise Refused("ValidationException", f"S3 bucket {bucket} does not exist") from error
        if place != region:
            raise Refused("ValidationException", f"The S3 bucket {bucket} is in {place}, the training job in {region}")

    def _look_at_pool(self, job: TrainingJob) -> None:
        if job.pool == "Available" and time.time() >= job.pool_until:
            job.pool = "Terminated"

    # A job's life.

    def _live(self, job: TrainingJob) -> None:
        try:
            self._run(job)
        except Exception as error:
            job.status, job.secondary, job.reason = "Failed", "Failed", f"InternalServerError: {error!r}"
        finally:
            self._kill(job)
            job.ended = time.time()

    def _run(self, job: TrainingJob) -> None:
        limits = job.request["StoppingCondition"]
        time.sleep(0.1)
        if (job.region, job.spot) in self.no_capacity:
            if job.spot:
                job.status, job.secondary = "Stopped", "MaxWaitTimeExceeded"
            else:
                job.status, job.secondary, job.reason = "Failed", "Failed", NO_CAPACITY
            return
        kept = next((other for other in self.jobs.values() if other.pool == "Available" and _alike(job, other)), None)
        if kept is not None:
            kept.pool = "Reused"
        while True:
            how = self._train(job, limits["MaxRuntimeInSeconds"])
            if how != "interrupted":
                break
            job.secondary = "Interrupted"
            if time.time() - job.made > limits["MaxWaitTimeInSeconds"]:
                job.status, job.secondary = "Stopped", "MaxWaitTimeExceeded"
                return
            time.sleep(0.5)
        job.secondary = "Uploading"
        self._upload_model(job)
        if how == "ended":
            job.ended = time.time()  # all of it before the status, which others wait for
            if seconds := job.request["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
                job.pool, job.pool_until = "Available", job.ended + seconds
            job.status = job.secondary = "Completed"
        elif how == "failed":
            job.status = job.secondary = "Failed"
        else:
            job.status, job.secondary = "Stopped", how

    def _train(self, job: TrainingJob, most: float) -> str:
        """Run the containers once; return ended, failed, interrupted, or why the job was stopped."""
        job.starts += 1
        job.interrupted.clear()
        if job.stop:
            return job.stop
        job.secondary = "Downloading"
        names = [f"algo-{n + 1}" if namespaces() else f"127.0.0.{n + 1}" for n in range(_count(job))]
        with self._lock:
            places = [self.network.join() if self.network else ("", "127.0.0.1") for _ in names]
        addresses = dict(zip(names, (address for _, address in places), strict=True))
        job.hosts = [self._start(job, name, addresses, space) for name, (space, _) in zip(names, places, strict=True)]
        job.secondary, began = "Training", time.monotonic()
        before = job.trained
        killed = float("inf")
        how = ""
        while any(host.process.poll() is None for host in job.hosts):
            job.trained = before + time.monotonic() - began
            if not how:
                how = (
                    "interrupted"
                    if job.interrupted.is_set()
                    else job.stop or ("MaxRuntimeExceeded" if job.trained > most else "")
                )
                if how:
                    job.status = job.status if how == "interrupted" else "Stopping"
                    killed = time.monotonic() + (self.interrupt_grace if how == "interrupted" else self.grace)
                    self._signal(job, signal.SIGTERM)
            elif time.monotonic() > killed:
                job.signals.append("SIGKILL")
                self._kill(job)
            if not how and any(host.process.poll() not in (None, 0) for host in job.hosts):
                time.sleep(1.0)
                self._kill(job)
            time.sleep(0.05)
        for host in job.hosts:
            host.reader.join(10)
        job.trained = before + time.monotonic() - began
        if how:
            return how
        codes = [host.process.returncode for host in job.hosts]
        if any(codes):
            worst = next(n for n, code in enumerate(codes) if code)
            file = job.hosts[worst].folder / "ml" / "output" / "failure"
            message = file.read_text() if file.is_file() else ""
            job.reason = f"AlgorithmError: {message}, exit code: {codes[worst]}"[:1024]
            return "failed"
        return "ended"

    def _start(self, job: TrainingJob, name: str, addresses: dict[str, str], space: str) -> Host:
        """Start a host.

        Args:
            addresses: of all hosts of the job, by name.
            space: its network namespace; empty where it has none.
        """
        names = list(addresses)
        folder = self.folder / job.name / str(job.starts) / name
        ml = folder / "ml"
        for part in ("input/config", "input/data", "model", "output/data", "code"):
            (ml / part).mkdir(parents=True)
        (folder / "scratch").mkdir()
        config = {"current_host": name, "hosts": names, "network_interface_name": "eth0" if space else "lo"}
        (ml / "input/config/resourceconfig.json").write_text(json.dumps(config))
        (ml / "input/config/hyperparameters.json").write_text("{}")
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{addresses[each]} {each}\n" for each in names)
        )
        for channel in job.request["InputDataConfig"]:
            self._download(_uri(channel), ml / "input/data" / channel["ChannelName"])
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            **self.env,
            "AWS_REGION": job.region,
            "AWS_DEFAULT_REGION": job.region,
            "TRAINING_JOB_NAME": job.name,
            "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{job.region}:{ACCOUNT}:training-job/{job.name}",
            **job.request.get("Environment", {}),
        }
        entry = self.entry or job.request["AlgorithmSpecification"]["ContainerEntrypoint"]
        if namespaces():
            for place in ("/opt/ml", "/tmp/skytune"):
                Path(place).mkdir(parents=True, exist_ok=True)
            mounts = [("ml", "/opt/ml"), ("scratch", "/tmp/skytune"), ("hosts", "/etc/hosts")]
            script = " && ".join(f"mount --bind {folder / source} {target}" for source, target in mounts)
            inside = ["ip", "netns", "exec", space] if space else []
            words = [*inside, "unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh", *entry]
        else:
            env |= {"SKYTUNE_OPT_ML": str(ml), "SKYTUNE_SCRATCH": str(folder / "scratch")}
            words = [word.replace("/opt/ml", str(ml)) for word in entry]
        process = subprocess.Popen(
            words,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stream = f"{job.name}/{f'algo-{names.index(name) + 1}'}-{time.time_ns() // 1_000_000}"
        reader = threading.Thread(target=self._read, args=(job, process, stream, name == names[0]), daemon=True)
        reader.start()
        return Host(name, folder, process, reader)

    def _read(self, job: TrainingJob, process: "subprocess.Popen[bytes]", stream: str, first: bool) -> None:
        """Hand a host's lines on to CloudWatch."""
        logs = self._logs(job.region)
        try:
            logs.create_log_group(logGroupName=GROUP)
        except logs.exceptions.ResourceAlreadyExistsException:
            pass
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n") or " "
            event = {"timestamp": int(time.time() * 1000), "message": text}
            logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=[event])
            for pattern in [each for each in self.when if first and re.search(each, text)]:
                self.when.pop(pattern)(job)

    @cache  # noqa: B019
    def _logs(self, region: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        return boto3.client("logs", endpoint_url=self.url, region_name=region, **keys)

    def _download(self, uri: str, target: Path) -> None:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        target.mkdir(parents=True, exist_ok=True)
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for each in page.get("Contents", []):
                place = target / each["Key"][len(prefix) :].lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self.client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read())

    def _upload_model(self, job: TrainingJob) -> None:
        model = job.hosts[0].folder / "ml" / "model" if job.hosts else None
        if model is None or not any(model.iterdir()):
            return
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for path in sorted(model.iterdir()):
                archive.add(path, path.name)
        bucket, _, prefix = job.request["OutputDataConfig"]["S3OutputPath"].removeprefix("s3://").partition("/")
        self.client.put_object(
            Bucket=bucket, Key=f"{prefix.rstrip('/')}/{job.name}/output/model.tar.gz", Body=data.getvalue()
        )

    def _signal(self, job: TrainingJob, number: signal.Signals) -> None:
        job.signals.append(number.name)
        for host in job.hosts:
            if host.process.poll() is None:
                os.kill(host.process.pid, number)

    def _kill(self, job: TrainingJob) -> None:
        for host in job.hosts:
            stdout, host.process.stdout = host.process.stdout, None  # its reader closes it
            end_group(host.process, 0.0)
            host.process.stdout = stdout

    # For tests.

    def interrupt(self, job: TrainingJob) -> None:
        """Take a spot job's machines away."""
        job.interrupted.set()

    def time_up(self, job: TrainingJob) -> None:
        """Have a job come to the end of its MaxRuntime, without waiting for it."""
        job.stop = "MaxRuntimeExceeded"

    def running(self) -> list[str]:
        """Return the names of jobs that have not ended, or whose machines are kept."""
        for job in self.jobs.values():
            self._look_at_pool(job)
        return [job.name for job in self.jobs.values() if job.ended is None or job.pool == "Available"]

    def close(self) -> None:
        """End everything."""
        for job in self.jobs.values():
            job.stop = job.stop or "Stopped"
            self._kill(job)
        for thread in self._threads:
            thread.join(20)
        self.server.shutdown()
        self.network.close()


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _uri(channel: dict[str, Any]) -> str:
    return str(channel["DataSource"]["S3DataSource"]["S3Uri"])


def _count(job: TrainingJob) -> int:
    return int(job.request["ResourceConfig"]["InstanceCount"])


def _alike(job: TrainingJob, other: TrainingJob) -> bool:
    """Whether a job gets the machines that were kept after another."""
    same = ("RoleArn", "AlgorithmSpecification", "VpcConfig", "EnableManagedSpotTraining")
    kinds = [{k: v for k, v in one.request["ResourceConfig"].items() if "Keep" not in k} for one in (job, other)]
    return kinds[0] == kinds[1] and all(job.request.get(key) == other.request.get(key) for key in same)


def main() -> None:
    """Run until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="sagemaker-") as folder:
        standin = StandIn(Path(folder))
        standin.client.create_bucket(Bucket="sagemaker-standin")
        print(f"# SageMaker's stand-in, since {datetime.now(UTC):%H:%M} UTC; in another shell:")
        for name, value in standin.env.items():
            print(f"export {name}={value}")
        print(
            "python src/run.py compute=ml.m5.large checkpoint.store=s3://sagemaker-standin/runs "
            f"sagemaker.role=arn:aws:iam::{ACCOUNT}:role/standin",
            flush=True,
        )
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            standin.close()


if __name__ == "__main__":
    main()
