"""The server's process: a socket, a model, requests until somebody asks it to end, and the answers owed then."""

import asyncio
import errno
import gc
import ipaddress
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ..common.stop_request import StopRequest
from ..config import ConfigError, RunConfig, UserError
from ..models.quiet import quiet
from .app import Traffic, make_app
from .page import facts_of
from .predictor import Predictor
from .requests import Limits, Reader

TOKEN = "SKYTUNE_SERVE_TOKEN"
"""Variable of the token that clients have to know."""

QUIET_SECONDS = 0.5
"""So long nobody asks anything before connections that are open without a request are closed."""

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep connections (httpx 5 s, many proxies 60 s): it is they who close those that idle, so that no
request meets one that is being closed."""


class DrainingServer(uvicorn.Server):
    """Ends in order: no new connections, an answer to whatever was asked on those that are there, and the end."""

    def __init__(self, config: uvicorn.Config, traffic: Traffic, grace_seconds: int, told: list[str]) -> None:
        super().__init__(config)
        self.traffic, self.grace_seconds, self.told = traffic, grace_seconds, told

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_Ending`; uvicorn would raise them once more when it has ended."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so; see `uvicorn.Server`."""
        await super().startup(sockets)
        print("\n".join(self.told), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked, then end; see `uvicorn.Server`."""
        print("ending: what was asked is still answered", file=sys.stderr, flush=True)
        self.traffic.draining = True
        await asyncio.sleep(0.05)  # whom the kernel has let in already comes in
        for server in self.servers:
            server.close()
        end = time.monotonic() + self.grace_seconds
        # On a connection that is there, a request may be on its way: it is read, and answered with the end.
        while (
            time.monotonic() < end
            and not self.force_exit
            and (self.traffic.running or time.monotonic() - self.traffic.last < QUIET_SECONDS)
        ):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def serve(checkpoint: str, run: dict[str, Any], *, host: str, port: int, limits: Limits, grace_seconds: int) -> None:
    """Serve a trained model until SIGTERM or Ctrl-C.

    Args:
        run: keys of a run: task, plugins, trust, precision, compute, data.max_length.
        grace_seconds: for what was asked, at the end.

    Raises:
        UserError: no model, no place to listen at, or nothing to serve it with.
    """
    token = os.environ.get(TOKEN)
    if token is not None and not token.strip():
        raise ConfigError(f"{TOKEN} is empty: give it a value, or unset it to serve without a token")
    place = _bind(host, port)
    host, port = place.getsockname()[:2]
    config = RunConfig.parse({**run, "eval": {"batch_size": limits.batch_rows}})
    predictor = Predictor(checkpoint, config)
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{port}"
    facts = facts_of(predictor, limits, where)
    reader = Reader(predictor.form, limits, token and token.strip())
    traffic = make_app(predictor, reader, facts)
    settings = uvicorn.Config(
        traffic,
        log_level="warning",
        access_log=False,
        # The parser that bounds the headers of a request.
        http="h11",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
        server_header=False,
    )
    told = [f"serving {facts['name']} ({facts['task']}, {facts['facts']['computed']}) at {where}"]
    told.append(f"  page: {where}/docs   stop: Ctrl-C or SIGTERM (process {os.getpid()})")
    if token is None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        told.append(f"warning: anybody who reaches this machine may ask; {TOKEN}=... has them know a token")
    gc.collect()
    gc.freeze()
    server = DrainingServer(settings, traffic, grace_seconds, told)
    _Ending(server).listen()
    with quiet("transformers"):  # once, and not for every batch
        server.run([place])


class _Ending(StopRequest):
    """Hands a signal on to the server."""

    def __init__(self, server: uvicorn.Server) -> None:
        super().__init__([signal.SIGTERM, signal.SIGINT])
        self.server = server

    def on_signal(self, number: int, first: bool) -> None:
        """See `StopRequest`."""
        self.server.handle_exit(number, None)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that has the place and does not listen yet: until then nobody waits for a model that loads."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        place = socket.socket(family, kind)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        hint = "; --port takes another, --port 0 any that is free" if taken else ""
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: cannot listen there: {reason}{hint}") from error
    return place
