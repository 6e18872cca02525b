"""Errors of stores: which ones pass by themselves and are tried again, and how the others are told to a person."""

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..common.files import is_disk_full
from ..common.text import first_line
from ..config import NotReachable, UserError

T = TypeVar("T")

log = logging.getLogger(__name__)

_PASSING_ERRNO = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
    getattr(errno, "EREMOTEIO", 121),
    getattr(errno, "ESTALE", 116),
}

_PASSING_CODES = {
    "BandwidthLimitExceeded",
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}

# By name, because the libraries that own them are imported only where their store is used.
_PASSING_CLASSES = {
    "ClientPayloadError",
    "ConnectionClosedError",
    "ConnectTimeoutError",
    "EndpointConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "ReadTimeoutError",
    "ResponseParserError",
    "ServerDisconnectedError",
    "TransportError",
}

_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "SSOTokenLoadError"}
_REFUSED = {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
_OTHER_REGION = {
    "301",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "Redirect",
}


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Exponential backoff with jitter, bounded by a deadline."""

    deadline_seconds: float = 120.0
    """No new try begins later than this after the first one failed (a large file may take longer by itself)."""

    first_seconds: float = 0.5
    """Longest pause after the first failure; it doubles with each further one."""

    longest_seconds: float = 20.0
    """Pauses grow no longer than this."""

    quiet: bool = False
    """Say nothing of a first failure: for what is done again soon anyway."""

    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def call(self, function: Callable[[], T], where: str, what: str) -> T:
        """Return `function()`; passing errors are tried again, others are raised as they are.

        Args:
            where: the store, for the message.
            what: what is being done, for the message.

        Raises:
            NotReachable: the store still fails at the deadline.
        """
        failing_since, tries = 0.0, 0
        while True:
            try:
                return function()
            except Exception as error:
                if not transient(error):
                    raise
                tries += 1
                if tries == 1:
                    failing_since = self.clock()
                    if not self.quiet:
                        seconds = self.deadline_seconds
                        log.info("%s: %s failed, tried again for %.0f s: %s", where, what, seconds, first_line(error))
                # Between half and all of the pause: never a hot loop, and many machines do not come back in step.
                pause = min(self.longest_seconds, self.first_seconds * 2.0 ** (tries - 1)) * random.uniform(0.5, 1)
                spent = self.clock() - failing_since
                if spent + pause > self.deadline_seconds:
                    raise NotReachable(
                        f"{where}: gave up on {what} after {tries} tries in {spent:.0f} s: {first_line(error)}"
                    ) from error
                self.sleep(pause)


def transient(error: BaseException) -> bool:
    """Return whether an error may pass by itself: a server's 5xx or 429, a timeout, a connection that broke."""
    if isinstance(error, (UserError, PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError)):
        return False
    for one in causes(error):
        status = http_status(one)
        if status is not None:
            return (status >= 500 and status != 501) or status == 429 or error_code(one) in _PASSING_CODES
        names = {kind.__name__ for kind in type(one).__mro__}
        if "OfflineModeIsEnabled" in names:
            return False
        if names & _PASSING_CLASSES:
            return True
    return isinstance(error, (TimeoutError, ConnectionError)) or (
        isinstance(error, OSError) and error.errno in _PASSING_ERRNO
    )


def explain(error: BaseException, where: str, what: str) -> UserError:
    """Return an error of a store as one line that names the store, the reason and the way out."""
    if isinstance(error, UserError):
        return error
    chain = list(causes(error))
    codes = {code for code in map(error_code, chain) if code}
    statuses = {status for status in map(http_status, chain) if status}
    names = {type(one).__name__ for one in chain}
    kind: type[UserError] = NotReachable
    reason = f"{what} failed: {first_line(error)}"
    if names & _NO_CREDENTIALS:
        reason = "no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID, run `aws configure`, or use a role"
    elif codes & _OTHER_REGION:
        reason = f"the bucket lies in another region: set AWS_DEFAULT_REGION to it ({first_line(error)})"
    elif codes & _REFUSED:
        reason = f"the credentials are refused ({', '.join(sorted(codes & _REFUSED))}): renew them"
    elif missing_bucket(error):
        reason = "no such bucket: create it, or correct the name"
    elif "OfflineModeIsEnabled" in names:
        reason = "HF_HUB_OFFLINE is set, and this store is on the Hub: unset it, or use another store"
    elif 401 in statuses and where.startswith("hf:"):
        reason = "the Hub does not accept the token: run `hf auth login`, or set HF_TOKEN to one that may write"
    elif isinstance(error, PermissionError) or 403 in statuses:
        reason = f"no permission for {what}: {first_line(error)}"
    elif is_disk_full(error):
        kind, reason = UserError, f"{what} failed: no space is left there; make room, or use another store"
    elif isinstance(error, OSError) and error.errno == errno.EROFS:
        kind, reason = UserError, "is read-only; use another store"
    return kind(f"{where}: {reason}")


def missing_bucket(error: BaseException) -> bool:
    """Return whether it is the bucket that is missing, not a file in it."""
    return any(error_code(one) == "NoSuchBucket" for one in causes(error)) or "bucket does not exist" in str(error)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of a botocore or Hub error, None for others."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def error_code(error: BaseException) -> str | None:
    """Return S3's error code (`SlowDown`, `AccessDenied`, ...), None for other errors."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code")
        return str(code) if code else None
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, in turn."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__
