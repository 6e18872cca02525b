"""`python src/stack.py` from its words to its exit code: the real command and ZenML's real store, on moto's account."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
BUCKET = "skytune-aws-123456789012-us-east-1"


@dataclass
class Said:
    code: int
    out: str
    err: str


class Commands:
    """One process that runs the command again and again."""

    def __init__(self, folder: Path) -> None:
        (folder / "repository" / ".zen").mkdir(parents=True)
        self.touched: set[str] = set()
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ZENML_"))},
            "ZENML_CONFIG_PATH": str(folder / "zenml"),
            "ZENML_REPOSITORY_PATH": str(folder / "repository"),
            "ZENML_LOCAL_STORES_PATH": str(folder / "stores"),
            "PYTHONPATH": str(SRC),
            "COLUMNS": "200",
        }
        self.child = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "helpers" / "one_by_one.py"), str(SRC)],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )

    def __call__(self, *words: str) -> Said:
        assert self.child.stdin is not None and self.child.stdout is not None
        env = {n: v for n, v in os.environ.items() if n.startswith("AWS_") or n in ("HOME", "SKYTUNE_HOME")}
        if words[0] == "check":
            words = (*words, "--timeout", "100")  # a busy machine must not fail what is not about time
        if words[0] in ("register", "destroy"):
            self.touched.add(words[1])
        self.child.stdin.write(json.dumps({"words": list(words), "env": env}) + "\n")
        self.child.stdin.flush()
        return Said(**json.loads(self.child.stdout.readline()))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    pytest.importorskip("zenml")
    made = Commands(tmp_path_factory.mktemp("stack-command"))
    yield made
    assert made.child.stdin is not None
    made.child.stdin.close()
    made.child.wait(600)


@pytest.fixture
def stack(aws: Any, commands: Commands) -> Iterator[Commands]:
    """The command; whatever stack a test leaves is taken away."""
    yield commands
    for name in commands.touched & {"aws", "aws-spot"}:
        commands("destroy", name, "--region", "us-east-1", "--yes", "--delete-data")
    commands.touched.clear()


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_register_check_and_destroy(stack: Commands, tmp_path: Path) -> None:
    done = stack("register", "aws", "--compute", "m6i.2xlarge")
    assert (done.code, done.err) == (0, "")
    assert [line[:2] for line in lines(done.out)[1:6]] == [
        ["made", "bucket"],
        ["made", "role"],
        ["made", "profile"],
        ["made", "repository"],
        ["made", "stack"],
    ]
    assert "at rest about $0.00 a month" in done.out
    assert f"  python src/run.py\ncheckpoints go to s3://{BUCKET}/runs" in done.out

    again = stack("register", "aws", "--compute", "m6i.2xlarge")
    assert [line[0] for line in lines(again.out)[1:6]] == ["found"] * 5
    assert "nothing was changed" in again.out

    checked = stack("check", "aws")
    assert checked.code == 0, checked.out
    assert "aws us-east-1, s3://skytune-aws-123456789012-us-east-1, m6i.2xlarge, on demand" in checked.out
    assert "on demand: 256 vCPUs of Standard" in checked.out
    seconds = re.search(r"^go: zenml stack set aws && python src/run.py \(([\d.]+) s\)$", checked.out, re.MULTILINE)
    assert seconds, checked.out

    too_large = stack("check", "aws", "--compute", "g5.12xlarge", "--spot")
    assert too_large.code == 1 and "no go: " in too_large.out
    assert re.search(r"FAIL +quota +spot: 0 vCPUs of G and VT", too_large.out)

    boto3.client("s3").put_object(Bucket=BUCKET, Key="runs/a", Body=b"x")
    kept = stack("destroy", "aws", "--yes")
    assert kept.code == 1 and "holds 1 object" in kept.err and "--delete-data" in kept.err
    assert boto3.client("s3").head_bucket(Bucket=BUCKET)
    assert re.search(r"^  aws +aws us-east-1", stack("list").out, re.MULTILINE)

    gone = stack("destroy", "aws", "--yes", "--delete-data")
    assert gone.code == 0, gone.err
    assert [line[0] for line in lines(gone.out)[1:]] == ["removed"] * 5
    assert boto3.client("s3").list_buckets()["Buckets"] == []
    assert "no stack is registered" in stack("list").out


def test_another_machine_changes_the_stack_alone(stack: Commands) -> None:
    stack("register", "aws", "--compute", "m6i.2xlarge")
    done = stack("register", "aws", "--compute", "g5.12xlarge", "--spot", "--keep-days", "3")
    assert [line[0] for line in lines(done.out)[1:6]] == ["changed", "found", "found", "found", "changed"]
    assert "g5.12xlarge, spot" in stack("list").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--region", "us-west-2"], "registered with region us-east-1, not us-west-2"),
        (["--bucket", "another"], f"registered with bucket {BUCKET}, not another"),
    ],
    ids=["region", "bucket"],
)
def test_a_stack_is_not_moved_so_that_something_is_left_behind(stack: Commands, words: list[str], message: str) -> None:
    stack("register", "aws")
    found = stack("register", "aws", *words)
    assert found.code == 1 and message in found.err and "destroy aws` first" in found.err
    assert [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]] == [BUCKET]


def test_a_bucket_that_was_given_is_remembered(stack: Commands) -> None:
    boto3.client("s3").create_bucket(Bucket="lab-data")
    assert stack("register", "aws", "--bucket", "s3://lab-data/").code == 0
    again = stack("register", "aws")
    assert again.code == 0 and "s3://lab-data" in again.out and "nothing was changed" in again.out
    assert [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]] == ["lab-data"]
    gone = stack("destroy", "aws", "--yes", "--delete-data")
    assert re.search(r"^  kept +bucket +s3://lab-data ", gone.out, re.MULTILINE)


def test_a_stack_that_was_registered_by_hand_is_left_alone(stack: Commands) -> None:
    code = "from zenml.client import Client\nc = Client(); components = c.active_stack_model.components\n"
    code += "c.create_stack('aws-spot', {kind: those[0].id for kind, those in components.items()})"
    assert stack("python", code).code == 0
    done = stack("register", "aws-spot")
    assert done.code == 1 and "ZenML has one of that name that was not registered here" in done.err
    assert boto3.client("s3").list_buckets()["Buckets"] == []
    assert stack("python", "from zenml.client import Client; Client().delete_stack('aws-spot')").code == 0


def test_a_stack_that_is_not_there_yet_is_no_go(stack: Commands) -> None:
    done = stack("check", "aws", "--compute", "m6i.2xlarge")
    assert done.code == 1
    assert re.search(r"FAIL +stack +aws is not registered in ZenML", done.out)
    assert "`python src/stack.py register aws`" in done.out
    assert re.search(r"ok +quota +on demand: 256 vCPUs", done.out)  # everything else is told already


def test_destroying_asks(stack: Commands) -> None:
    stack("register", "aws")
    done = stack("destroy", "aws")
    assert (done.code, done.err) == (1, "error: destroy asks first: --yes agrees beforehand\n")
    assert boto3.client("s3").head_bucket(Bucket=BUCKET)


def test_the_active_stack_can_be_destroyed(stack: Commands) -> None:
    stack("register", "aws")
    assert not re.search(r"^\*", stack("list").out, re.MULTILINE)
    assert stack("python", "from zenml.client import Client; Client().activate_stack('aws')").code == 0
    assert re.search(r"^\* aws ", stack("list").out, re.MULTILINE)
    assert stack("destroy", "aws", "--yes").code == 0
    assert (
        stack("python", "from zenml.client import Client; print(Client().active_stack_model.name)").out == "default\n"
    )


def test_machines_get_the_stacks_role_and_not_the_users_keys(stack: Commands) -> None:
    stack("register", "aws")
    home = Path(os.environ["SKYTUNE_HOME"])
    code = "import os; from zenml.client import Client; from skytune.stacks import environment\n"
    code += "Client().activate_stack('aws'); environment.connect(); print(os.environ['SKYPILOT_PROJECT_CONFIG'])"
    file = Path(stack("python", code).out.strip())
    assert file == home / "stacks" / "aws.sky.yaml"
    assert yaml.safe_load(file.read_text())["aws"] == {"remote_identity": "skytune-aws-us-east-1"}
    stack("destroy", "aws", "--yes")
    assert not file.exists()


def test_policies_are_json_without_anything_else(stack: Commands) -> None:
    for extra in ([], ["--setup"]):
        done = stack("policy", "aws", *extra)
        assert json.loads(done.out)["Version"] == "2012-10-17" and done.err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["register", "mars"], "there is no .*mars.yaml (there are: aws, aws-spot); --file NAME takes another's"),
        (["register", "AWS"], "stack AWS: a name of up to 20 small letters, digits and hyphens"),
        (["register", "aws", "--region", "us-west-3"], "--region us-west-3: AWS has no such region"),
        (["register", "aws", "--compute", "7xb200"], "--compute 7xb200: neither a preset for machines"),
        (["register", "aws", "--compute", "mps"], "--compute mps: is a preset for this machine"),
        (["register", "aws", "--compute", "local"], "--compute local: is a preset for this machine"),
        (["register", "aws", "--bucket", "My_Bucket"], "--bucket My_Bucket: a bucket's name has 3 to 63 small letters"),
        (["register", "aws", "--keep-days", "0"], "keep_days=0: must be at least 1"),
    ],
    ids=["file", "name", "region", "preset", "here", "this-machine", "bucket", "days"],
)
def test_mistakes_are_told_in_one_line_before_anything_is_made(stack: Commands, words: list[str], message: str) -> None:
    found = stack(*words)
    assert found.code == 1 and found.out == ""
    assert found.err.startswith("error: ") and found.err.count("\n") == 1
    pattern = re.escape(message).replace(r"\.\*", ".*")
    assert re.search(pattern, found.err), found.err
    assert boto3.client("s3").list_buckets()["Buckets"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regoin: us-east-1", "unknown key 'regoin': did you mean region?"),
        (
            "machine:\n  max_hourly_used: 3",
            "unknown key 'machine.max_hourly_used': did you mean machine.max_hourly_usd?",
        ),
        ("machine:\n  disk_size: large", "machine.disk_size"),
        ("spot: maybe", "spot='maybe': must be true or false"),
        ("region: [", "is no YAML"),
    ],
    ids=["key", "machine-key", "machine-value", "value", "yaml"],
)
def test_mistakes_in_a_stack_file(stack: Commands, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    found = stack("register", "aws", "--file", str(tmp_path / "mine.yaml"))
    assert found.code == 1 and found.err.count("\n") == 1 and message in found.err
    assert "extra." not in found.err
    assert boto3.client("s3").list_buckets()["Buckets"] == []


def test_a_preset_for_machines(stack: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("compute: 2x4xa10g\nmachine:\n  max_hourly_usd: 9\n")
    assert stack("register", "aws", "--file", str(tmp_path / "mine.yaml")).code == 0
    assert "2 x A10G:4, on demand" in stack("list").out
    checked = stack("check", "aws")
    assert "2 x g5.12xlarge" in checked.out
    assert "$11.34 an hour is more than max_hourly_usd=9" in checked.out


def test_without_credentials(stack: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    done = stack("register", "aws")
    assert done.code == 1 and done.err.startswith("error: no AWS credentials: ") and done.err.count("\n") == 1
    checked = stack("check", "aws")
    assert checked.code == 1 and re.search(r"FAIL +identity +no AWS credentials", checked.out)
    assert re.search(r"skypilot +\d", checked.out)  # what can be told without is told
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")


def test_with_expired_credentials(stack: Commands, aws: Any) -> None:
    aws.expired = True
    done = stack("register", "aws")
    aws.expired = False
    assert done.code == 1 and "the AWS credentials have expired" in done.err and done.err.count("\n") == 1


def test_credentials_of_another_account(stack: Commands, aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stack("register", "aws")
    other = boto3.client("sts").assume_role(RoleArn="arn:aws:iam::210987654321:role/x", RoleSessionName="xx")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", other["Credentials"]["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", other["Credentials"]["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", other["Credentials"]["SessionToken"])
        checked = stack("check", "aws")
        assert checked.code == 1
        assert "the credentials are of account 210987654321, the stack is of 123456789012" in checked.out
        destroyed = stack("destroy", "aws", "--yes")
        assert destroyed.code == 1 and "of another account" in destroyed.err


@pytest.mark.parametrize("words", [["--help"], ["register", "--help"], ["check", "--help"]], ids=lambda w: w[0])
def test_help_needs_nothing_and_fits(words: list[str]) -> None:
    """In a Python that has only the standard library."""
    run = subprocess.run(
        [sys.executable, "-S", "-E", str(SRC / "stack.py"), *words], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0 and run.stderr == ""
    assert max(map(len, run.stdout.splitlines())) <= 110
    for command in ("register", "check", "list", "destroy", "policy") if words == ["--help"] else ["--region"]:
        assert command in run.stdout


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-S", "-E", str(SRC / "stack.py"), "register", "aws"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert run.returncode == 1 and run.stdout == ""
    assert re.fullmatch(r"error: '\w+' is not installed in this Python .*make install-dev.*\n", run.stderr), run.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "stacks").glob("*.yaml")), ids=lambda file: file.stem)
def test_stack_files_open_with_their_command_and_explain_every_key(file: Path, stack: Commands) -> None:
    first, second, *rest = file.read_text().splitlines()
    assert first == f"# python src/stack.py register {file.stem}"
    assert second.startswith("# ")
    assert all(" # " in line for line in rest if line.strip())
    done = stack(*first.removeprefix("# python src/stack.py ").split(), "--compute", "m6i.2xlarge")
    assert done.code == 0, done.err
    assert ("spot" in file.stem) == ("m6i.2xlarge, spot" in stack("list").out)
