"""The client of S3: s3fs, set up so that a server which stops answering is noticed, whatever it stopped amid.

A client's read timeout alone does not do that. It runs only once a request is written, so a server that stops reading
amid a large one is waited for as long as its machine is up. And an answer before the answer ends it: S3 is asked for a
`100 Continue` before each upload, and where that arrives late, aiohttp waits for the real answer without end.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

from ...config import UserError
from ...config.installing import add_extra

OWNER = "SKYTUNE_BUCKET_OWNER"
"""Environment variable: BUCKET=ACCOUNT of the stack, whose bucket's name can be guessed and made by anybody."""


def file_system(url: str, options: dict[str, Any] | None, patience: float) -> Any:
    """Return s3fs's file system.

    Args:
        url: the store, for messages.
        options: further arguments of the file system (`endpoint_url`, `anon`, `config_kwargs`, ...).
        patience: seconds without any progress after which the server counts as away; more than 0.

    Raises:
        UserError: s3fs is not installed.
    """
    import fsspec

    extra = dict(options or {})
    config: dict[str, Any] = {
        "retries": {"mode": "standard", "total_max_attempts": 3},
        "connect_timeout": patience,
        "read_timeout": patience,
        **extra.pop("config_kwargs", {}),
    }
    config.setdefault("connector_args", {"socket_factory": _sockets(config["read_timeout"])})
    try:
        system = fsspec.filesystem(
            "s3",
            skip_instance_cache=True,  # settings of ours, not those of who came first
            use_listings_cache=False,  # other machines write too
            config_kwargs=config,
            session=_session(url),
            **extra,
        )
    except ImportError as error:
        raise UserError(f"checkpoint.store={url}: needs another package ({error}): {add_extra('aws')}") from error
    system.retries = 1  # ours are bounded by a deadline
    return system


def bucket_of(account: str, bucket: str | None = None) -> Callable[..., dict[str, Any] | None]:
    """Return a handler of botocore's `provide-client-params.s3`: requests are refused by buckets of other accounts.

    Args:
        account: number of the account whose buckets are meant.
        bucket: only requests for this one; None for all.
    """

    def provide(params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any] | None:
        shape = model.input_shape
        if shape is None or "ExpectedBucketOwner" not in shape.members or bucket not in (None, params.get("Bucket")):
            return None
        return {**params, "ExpectedBucketOwner": account}

    return provide


def _session(url: str) -> Any:
    """Return a session that asks for no `100 Continue`: what it would save, the probe before training has found out."""
    from aiobotocore.session import AioSession  # type: ignore[import-untyped]
    from botocore.handlers import add_expect_header

    session = AioSession()
    session.unregister("before-call.s3", add_expect_header)
    bucket, _, account = os.environ.get(OWNER, "").partition("=")
    if account and url.removeprefix("s3://").partition("/")[0] == bucket:
        session.register("provide-client-params.s3", bucket_of(account))
    return session


def _sockets(patience: float) -> Callable[[Any], socket.socket]:
    """Return a maker of sockets that break when what they sent is not taken for so many seconds (Linux only)."""

    def make(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(patience * 1000)))
        return made

    return make
