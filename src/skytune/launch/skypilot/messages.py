"""What SkyPilot says, in the words of this project: one line that names the thing and the way out."""

import io
import json
import logging
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ...common.background import Pending
from ...config import NotReachable, UserError
from ...config.installing import add_extra

log = logging.getLogger(__name__)

PROGRESS = ("Launching", "is up", "Insufficient", "ailed", "Trying", "capacity")
"""What is worth showing while machines are brought up; all of it is in the run's logs."""

REASONS = re.compile(
    r"\b(InsufficientInstanceCapacity|VcpuLimitExceeded|MaxSpotInstanceCountExceeded|"
    r"UnauthorizedOperation|RequestLimitExceeded|InvalidAMIID\.\w+|Unsupported)\b"
)
ZONES = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]?\b")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
EXPIRED = re.compile(r"ExpiredToken|RequestExpired|(?:token|session).{0,40}expired", re.IGNORECASE)


SERVER_SECONDS = 5.0
"""What SkyPilot's server may take to say its version."""

SERVER_CHECK_SECONDS = 90.0
"""What it may take to look at the clouds."""

RENEW = "the cloud's credentials have expired: renew them (aws sso login, aws configure), then run the command again"


def require() -> None:
    """Make sure that SkyPilot is there.

    Raises:
        UserError: with the way to install it.
    """
    try:
        import sky  # noqa: F401
    except ImportError as error:
        raise UserError(f"SkyPilot is not installed here ({error}): {add_extra('aws')}") from error


def no_machine() -> type[Exception]:
    """Return SkyPilot's class of error for machines that cannot be had."""
    from sky import exceptions

    found: type[Exception] = exceptions.ResourcesUnavailableError
    return found


def explained(error: Exception, cluster: str, infra: str | None = None) -> UserError:
    """Return an error of SkyPilot's as one that says what to do.

    Args:
        infra: `compute.infra`, whose cloud alone is looked at where SkyPilot may use none.
    """
    from sky import exceptions

    text = " ".join(str(error).split())
    history = [str(each) for each in getattr(error, "failover_history", [])]
    if EXPIRED.search(" ".join([text, *history])):
        return UserError(RENEW)
    if isinstance(error, exceptions.NoCloudAccessError) or "No cloud" in text or "is not enabled" in text:
        why = _why_no_cloud(infra)
        if EXPIRED.search(why):
            return UserError(f"{RENEW} ({why})")
        return UserError(
            f"SkyPilot may use no cloud{why and f' ({why})'}: `aws configure` gives credentials for AWS, "
            "`sky check` looks at all"
        )
    if isinstance(error, exceptions.ResourcesUnavailableError):
        return UserError(f"no machine could be had: {reasons(history) or _short(text)}")
    if isinstance(error, (exceptions.APIVersionMismatchError, exceptions.APINotSupportedError)):
        return UserError(
            f"SkyPilot's client is {_client_version()}, its API server {_server_version()}, and they do "
            "not fit together: `sky api stop && sky api start` gives the server on this machine the "
            "client's version (jobs go on)"
        )
    if isinstance(error, exceptions.ApiServerConnectionError):
        return NotReachable(f"SkyPilot's server does not answer: `sky api start` starts it ({_short(text)})")
    if isinstance(error, UserError):
        return error
    return UserError(f"cluster {cluster}: {type(error).__name__}: {_short(text)}")


def reasons(history: list[str]) -> str:
    """Return where and why no machine could be had, each once: `us-east-1a: InsufficientInstanceCapacity`."""
    places: dict[str, list[str]] = {}
    for text in [text for text in history if tells_why(text)] or history:
        found = REASONS.search(text)
        reason = found[1] if found else _short(" ".join(text.split()))
        listed = places.setdefault(reason, [])
        listed += [zone for zone in ZONES.findall(text) if zone not in listed]
    return "; ".join(f"{', '.join(where)}: {why}" if where else why for why, where in places.items())


def telling(lines: list[str]) -> list[str]:
    """Return the lines that tell why there is no machine; one that names no place is given that of its attempt."""
    found, place = [], ""
    for text in lines:
        if "Launching on" in text:
            place = next(iter(ZONES.findall(text)), "")
        elif tells_why(text):
            found.append(text if ZONES.search(text) or not place else f"{place}: {text}")
    return found


def tells_why(text: str) -> bool:
    """Whether a line of SkyPilot's holds the cloud's own reason; its errors often say no more than that it failed."""
    return bool(REASONS.search(text) or EXPIRED.search(text))


def log_progress(text: str) -> None:
    """Show what matters of SkyPilot's words while it brings machines up."""
    if REASONS.search(text):
        log.info("  %s", reasons([text]))
    elif any(mark in text for mark in PROGRESS):
        log.info("  %s", text.strip(" \u2699\ufe0e\u2713\u251c\u2514\u2500\u2502"))


def _why_no_cloud(infra: str | None) -> str:
    """Return what SkyPilot's own check says, in one line; empty where it says nothing."""
    from sky.client import sdk  # `sky.check` may be the function or the module of that name

    output = io.StringIO()
    clouds = (infra.partition("/")[0],) if infra else None
    try:
        call = Pending(lambda: sdk.stream_and_get(sdk.check(clouds, False), output_stream=output), "sky check")
        call.wait(seconds=SERVER_CHECK_SECONDS)
    except Exception as error:
        log.debug("sky check: %s", error)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.getvalue().splitlines()]
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("Reason")]
    # What expired is wherever it stands; else what the first cloud lacks is enough for one line.
    return _short("; ".join(dict.fromkeys([text for text in lines if EXPIRED.search(text)] or found)))


def _client_version() -> str:
    import sky

    return str(sky.__version__)


def _server_version() -> str:
    """Return the version of SkyPilot's API server; it is asked without saying ours, which it might refuse."""
    from sky.server import common

    try:
        with urllib.request.urlopen(f"{common.get_server_url()}/api/health", timeout=SERVER_SECONDS) as answer:
            return str(json.load(answer)["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.debug("the API server's version: %s", error)
        return "of another version"


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."


class Lines(io.TextIOBase):
    """Whole lines without colours go to a function and into a file."""

    def __init__(self, show: Callable[[str], None], record: Path) -> None:
        self.show, self.record, self.rest = show, record, ""

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Take a piece of text."""
        *lines, self.rest = (self.rest + text).split("\n")
        if lines:
            with self.record.open("a", encoding="utf-8") as file:
                for line in lines:
                    clean = ANSI.sub("", line).rstrip()
                    file.write(clean + "\n")
                    self.show(clean)
        return len(text)
