"""Credentials and regions that do not work: one line that says what to do."""

import socket
from pathlib import Path
from typing import Any

import pytest

from skytune.aws import account as accounts
from skytune.config import ConfigError, NotReachable, UserError


def test_who_asks(aws: Any) -> None:
    found = accounts.connect("us-west-2")
    assert (found.id, found.region, found.partition) == ("123456789012", "us-west-2", "aws")


def test_no_credentials(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="no AWS credentials: `aws configure` or `aws sso login`"):
        accounts.connect("us-east-1")


def test_half_of_the_credentials(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="incomplete AWS credentials"):
        accounts.connect("us-east-1")


def test_expired_credentials(aws: Any) -> None:
    aws.expired = True
    with pytest.raises(UserError, match="have expired: `aws sso login`"):
        accounts.connect("us-east-1")


def test_a_profile_that_is_not_there(aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "labb")
    with pytest.raises(UserError, match=r"labb.*could not be found.*\(lab\)"):
        accounts.connect("us-east-1")


def test_a_login_that_has_run_out(aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "[profile lab]\nsso_start_url = https://x.example/start\nsso_region = us-east-1\n"
    text += "sso_account_id = 123456789012\nsso_role_name = dev\nregion = us-east-1\n"
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="the AWS login has expired: `aws sso login`"):
        accounts.connect("us-east-1")


@pytest.mark.parametrize("region", ["us-east-7", "frankfurt"])
def test_a_region_that_does_not_exist(aws: Any, region: str) -> None:
    with pytest.raises(ConfigError, match=f"--region {region}: AWS has no such region"):
        accounts.connect(region)
    assert aws.calls == []  # known without asking


def test_no_region(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="no region: give --region"):
        accounts.connect()


def test_no_network(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(NotReachable, match="AWS does not answer"):
            accounts.connect("us-east-1")


def test_a_refusal_names_the_call_and_where_to_read_what_is_needed(aws: Any) -> None:
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": "AccessDenied", "Message": "User x is not authorized to perform: iam:CreateRole"}}
    with pytest.raises(UserError) as caught, accounts.spoken("aws"):
        raise ClientError(answer, "CreateRole")
    assert str(caught.value) == (
        "AWS refuses CreateRole: User x is not authorized to perform: iam:CreateRole; "
        "`python src/stack.py policy aws` prints what must be allowed"
    )
