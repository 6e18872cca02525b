"""An AWS account as the user's credentials show it, and botocore's errors in one line that a person can act on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.backends.s3 import bucket_of
from ..common.findings import Finding
from ..common.text import first_line
from ..config import ConfigError, NotReachable, UserError
from ..config.installing import needing

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 3, 10, 3
"""How patient a request is: a person waits for the answer."""

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
UNKNOWN_KEYS = {
    "AuthFailure",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
REFUSED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403", "Forbidden"}
LOG_IN = "`aws sso login`, or put new keys where the old ones are (AWS_PROFILE, ~/.aws/credentials, .env)"

Check = tuple[str, Callable[[], list[Finding]]]
"""What is looked at, in one or two words, and what looks."""


@dataclass
class Account:
    """Who asks, and where; makes the clients."""

    session: Any
    region: str
    id: str
    arn: str
    """Of the user or role whose credentials these are."""

    _clients: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def partition(self) -> str:
        """The part of AWS that the account belongs to: `aws`, `aws-cn`, `aws-us-gov`."""
        return self.arn.split(":")[1]

    def client(self, service: str, region: str | None = None) -> Any:
        """Return the client of a service; threads may share it."""
        key = (service, region or self.region)
        with self._lock:  # making clients is not safe in threads, using them is
            if key not in self._clients:
                made = self._clients[key] = _client(self.session, *key)
                if service == "s3":  # anybody may have made a bucket of a name that can be guessed
                    made.meta.events.register("provide-client-params.s3", bucket_of(self.id))
            return self._clients[key]


def connect(region: str | None = None) -> Account:
    """Return the account that the environment's credentials open; one request to AWS.

    Args:
        region: None takes the one that the profile or `AWS_DEFAULT_REGION` names.

    Raises:
        UserError: boto3 is missing, credentials are missing, expired or unknown, or the region does not exist.
    """
    with needing("aws"):
        import boto3
    with spoken():
        session = boto3.Session()
        place = checked_region(session, region or session.region_name)
        found = _client(session, "sts", place).get_caller_identity()
    return Account(session, place, found["Account"], found["Arn"])


def checked_region(session: Any, region: str | None) -> str:
    """Return the region if AWS has one of that name.

    Raises:
        ConfigError: none is given, or there is none of that name.
    """
    import difflib

    if not region:
        raise ConfigError("no region: give --region (us-east-1, eu-west-1, ...) or set AWS_DEFAULT_REGION")
    known = [name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)]
    if region not in known:
        close = difflib.get_close_matches(region, known, n=3)
        raise ConfigError(
            f"--region {region}: AWS has no such region" + (f"; near: {', '.join(close)}" if close else "")
        )
    return region


@contextmanager
def spoken(stack: str = "NAME") -> Iterator[None]:
    """Turn botocore's errors into a `UserError` of one line.

    Args:
        stack: for the command that prints what a person may need to be allowed.
    """
    from botocore import exceptions as aws

    try:
        yield
    except aws.ClientError as error:
        raise UserError(_refusal(error, stack)) from error
    except aws.ProfileNotFound as error:
        import botocore.session

        known = ", ".join(botocore.session.Session().available_profiles) or "none"
        raise UserError(f"{error}: AWS_PROFILE chooses one of those in ~/.aws ({known})") from error
    except (aws.NoCredentialsError, aws.PartialCredentialsError, aws.NoAuthTokenError) as error:
        text = "incomplete AWS credentials" if isinstance(error, aws.PartialCredentialsError) else "no AWS credentials"
        raise UserError(
            f"{text}: `aws configure` or `aws sso login`, then AWS_PROFILE if it is not the default; or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in .env"
        ) from error
    except (aws.UnauthorizedSSOTokenError, aws.SSOTokenLoadError, aws.TokenRetrievalError) as error:
        raise UserError(f"the AWS login has expired: {LOG_IN}") from error
    except aws.CredentialRetrievalError as error:
        raise UserError(f"the AWS credentials cannot be fetched ({first_line(error)}): {LOG_IN}") from error
    except (aws.ConnectionError, aws.HTTPClientError) as error:
        raise NotReachable(f"AWS does not answer: {first_line(error)} (network? proxy? AWS_ENDPOINT_URL?)") from error
    except aws.BotoCoreError as error:
        raise UserError(f"AWS: {first_line(error)}") from error


def code(error: Any) -> str:
    """Return the code of a `ClientError`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def ask(call: Callable[..., Any], *missing: str, **words: Any) -> dict[str, Any] | None:
    """Return what AWS answers to a call; None where its error has one of these codes: there is no such thing."""
    from botocore.exceptions import ClientError

    try:
        found: dict[str, Any] = call(**words)
    except ClientError as error:
        if code(error) in missing:
            return None
        raise
    return found


def tags(stack: str) -> list[dict[str, str]]:
    """Return the tags of everything that is made for a stack, as most services take them."""
    return [{"Key": TAG, "Value": stack}]


TAG = "skytune:stack"
"""Key of the tag that says which stack a thing was made for: what has none was not made here and is left alone."""


def owner(found: list[dict[str, str]]) -> str | None:
    """Return the stack for which a thing with these tags was made."""
    return next((tag["Value"] for tag in found if tag["Key"] == TAG), None)


def _client(session: Any, service: str, region: str) -> Any:
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)
    return session.client(service, region_name=region, config=config)


def _refusal(error: Any, stack: str) -> str:
    why, doing = code(error), error.operation_name
    message = str(error.response.get("Error", {}).get("Message", "")).strip().split("\n")[0]
    if why in EXPIRED:
        return f"the AWS credentials have expired: {LOG_IN}"
    if why in UNKNOWN_KEYS:
        return f"AWS does not know these credentials ({why}): {LOG_IN}"
    if why in REFUSED:
        return (
            f"AWS refuses {doing}: {message or why}; `python src/stack.py policy {stack}` prints what must be allowed"
        )
    if why == "OptInRequired":
        return f"the account has not enabled this region ({doing}): enable it under Account, AWS Regions, or --region"
    return f"AWS, {doing}: {why}: {message}"
