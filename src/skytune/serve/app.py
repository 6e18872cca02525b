"""The server's answers: predictions, health, metrics, and a page that needs nothing from elsewhere."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import disable_created_metrics

from ..config import UserError
from .batcher import Batcher, QueueFull
from .page import CSP, page
from .predictor import Answer, Predictor
from .requests import Reader

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What Prometheus is told."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "skytune_requests", "Answers by path and status.", ["path", "status"], registry=registry
        )
        self.rows = Counter("skytune_rows", "Rows that were computed.", registry=registry)
        self.queue = Gauge("skytune_queue_rows", "Rows that wait.", registry=registry)
        self.batches = Histogram("skytune_batch_rows", "Rows of a batch.", buckets=ROWS, registry=registry)
        self.compute = Histogram("skytune_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=registry)
        self.latency = Histogram("skytune_predict_seconds", "Time of /predict.", buckets=SECONDS, registry=registry)

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.rows.inc(rows)
        self.batches.observe(rows)
        self.compute.observe(seconds)


class Traffic:
    """Counts the requests of an application, and has their connections end where the server does.

    Attributes:
        running: requests that came and are not answered yet.
        last: when the last one came or was answered, of `time.monotonic`.
        draining: whether the server ends: what is asked is still answered, each time with the connection's end.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics
        self.running, self.last, self.draining = 0, time.monotonic(), False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle what ASGI hands over."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "other")
                self.metrics.requests.labels(path, message["status"]).inc()
                if self.draining:
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        self.running, self.last = self.running + 1, time.monotonic()
        try:
            await self.app(scope, receive, sent)
        finally:
            self.running, self.last = self.running - 1, time.monotonic()


def make_app(predictor: Predictor, reader: Reader, facts: dict[str, Any]) -> Traffic:
    """Return the application, whose page shows what `page.facts_of` returned."""
    metrics, limits = Metrics(), reader.limits
    batcher = Batcher(predictor.answers, batch_size=limits.batch_rows, limit=limits.queue, observe=metrics.batch)
    metrics.queue.set_function(lambda: len(batcher.waiting))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(batcher.run())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    known = [Depends(reader.authorize)]
    app = FastAPI(
        title=facts["name"],
        version=facts["version"],
        description=f"A model for {facts['task']}, served by skytune.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": reader.schema()}}}}
    errors: dict[int | str, dict[str, Any]] = {
        code: {"description": why} for code, why in {413: "Too large.", 415: "No JSON.", 422: "Not a request."}.items()
    }
    errors[429] = {"description": "Too much waits: try again after `Retry-After` seconds."}

    @app.post("/predict", dependencies=known, openapi_extra=body, responses=errors, summary="Answer one or many rows")
    async def predict(request: Request) -> Response:
        """`predictions` has an object a row, in their order: the columns that `pipeline=predict` writes, whether the
        row was `truncated`, and its `logits` where they were asked for."""
        start = time.monotonic()
        rows, logits = await reader.rows(request)
        try:
            found = await batcher.answer(rows)
        except QueueFull:
            many = f"{len(batcher.waiting)} rows wait, and at most {limits.queue} may: try again"
            raise HTTPException(429, many, {"Retry-After": "1"}) from None
        metrics.latency.observe(time.monotonic() - start)
        return JSONResponse({"predictions": [_told(answer, number, logits) for number, answer in enumerate(found)]})

    @app.get("/health", summary="Whether the server takes requests")
    async def health() -> Response:
        state = "draining" if traffic.draining else "ok"
        return JSONResponse({"status": state}, 503 if traffic.draining else 200)

    @app.get("/metrics", dependencies=known, summary="Numbers for Prometheus")
    async def numbers() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", dependencies=known, include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(app.openapi())

    @app.get("/", dependencies=known, include_in_schema=False)
    @app.get("/docs", dependencies=known, include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page(facts, app.openapi()), headers={"Content-Security-Policy": CSP})

    traffic = Traffic(app, metrics)
    return traffic


def _told(answer: Answer | Exception, number: int, logits: bool) -> dict[str, Any]:
    """Return an answer as it is sent.

    Raises:
        HTTPException: there is none: 422 where that lies in the row, else 500.
    """
    if isinstance(answer, UserError):
        raise HTTPException(422, f"inputs.{number}: {answer}")
    if isinstance(answer, Exception):
        log.error("a row could not be computed: %s: %s", type(answer).__name__, answer)
        raise HTTPException(500, f"inputs.{number}: the model failed: {type(answer).__name__}")
    return {**answer.values, "truncated": answer.truncated, **({"logits": answer.logits} if logits else {})}
