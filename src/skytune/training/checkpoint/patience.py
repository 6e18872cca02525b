"""Patience with the Hub: huggingface_hub's requests wait for an answer without end, and try some failures again five
times by themselves. A store's own requests must end when nothing moves, so that `Retry` alone decides how long a store
that is away is tried. All other requests, downloads of models and data sets above all, are left as they are.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

LIBRARY = "skytune-checkpoints"
"""Name by which a store's requests are known, in their `user-agent`."""

seconds = 60.0
"""How long a store's request may stand still: the shortest that was asked for in this process."""


def be_patient(for_seconds: float) -> None:
    """Let a store's requests to the Hub end after so many seconds without any progress. May be called again.

    The client is the one that there is, a person's own included; it gets another `send`.
    """
    global seconds
    seconds = min(seconds, for_seconds)
    _hurry_xet()
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http  # the present factory can be had from here only

    make = _http._GLOBAL_CLIENT_FACTORY
    if not hasattr(make, "skytune"):
        set_client_factory(_patient(make))


def _patient(make: "Callable[[], httpx.Client]") -> "Callable[[], httpx.Client]":
    """Return a maker of clients like those of `make` that bound a store's requests."""
    import httpx

    class StoodStill(httpx.TransportError):
        """None of the kinds that huggingface_hub tries again by itself."""

    def factory() -> httpx.Client:
        client = make()
        send = client.send

        def bounded(request: httpx.Request, **options: Any) -> httpx.Response:
            if not _is_ours(request):
                return send(request, **options)
            bounds = request.extensions.get("timeout") or {}
            names = ("connect", "read", "write", "pool")
            wanted = {name: seconds if bounds.get(name) is None else bounds[name] for name in names}
            request.extensions = {**request.extensions, "timeout": wanted}
            try:
                return send(request, **options)
            except httpx.TimeoutException as error:
                what = f"{request.method} {request.url.copy_with(query=None)}"
                raise StoodStill(f"no progress for {seconds:.0f} s: {what}", request=request) from error
            except httpx.NetworkError as error:
                raise StoodStill(str(error) or type(error).__name__, request=request) from error

        client.send = bounded  # type: ignore[method-assign]
        return client

    factory.skytune = True  # type: ignore[attr-defined]
    return factory


def _is_ours(request: "httpx.Request") -> bool:
    # The content of a large file goes to an address that the Hub gave for it, without headers; only uploads do that.
    return LIBRARY in request.headers.get("user-agent", "") or request.method == "PUT"


def _hurry_xet() -> None:
    """Let hf_xet, which takes the content of large files to the Hub, try a request twice instead of five times before
    `Retry` has its turn (it does not send again what has arrived). Its timeouts stay: they count from a request's
    begin, and a block may take long on a slow line. It reads the environment when it is first used; what a person has
    set there stays."""
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
