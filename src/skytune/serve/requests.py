"""What a request may be: read within limits, checked before any of it is computed; what is wrong is one line."""

import asyncio
import base64
import hmac
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import HTTPException, Request
from pydantic import (
    AfterValidator,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from starlette.requests import ClientDisconnect

from ..data.images import IMAGE
from .predictor import PAIR, TEXT, Form, Row

PIXEL = "R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs="
"""The smallest image, as an example."""

BODIES = 16
"""Bodies of the largest size that are in memory at once; as many again are read and thrown away of one too large."""


@dataclass(frozen=True)
class Limits:
    """How much may be asked for at once, and how much of it is computed together."""

    rows: int = 256
    """Rows of one request."""

    characters: int = 20_000
    """Letters of one row."""

    body_bytes: int = 4 * 2**20
    """Bytes of one request's body."""

    read_seconds: float = 30
    """Seconds in which a body has to arrive."""

    queue: int = 1024
    """Rows that wait."""

    batch_rows: int = 32
    """Rows of a micro-batch."""


class Reader:
    """Reads requests for one server.

    Args:
        form: what a row is.
        token: what a client has to know; None: nothing.
    """

    def __init__(self, form: Form, limits: Limits, token: str | None) -> None:
        self.form, self.limits, self.body = form, limits, body_model(form, limits)
        self.token = None if token is None else token.encode()
        self.reading = 0
        """Bytes that the bodies which are being read may come to."""

    def schema(self) -> dict[str, Any]:
        """Return what the body of `/predict` holds, as JSON schema where OpenAPI's description has it."""
        at = "#/paths/~1predict/post/requestBody/content/application~1json/schema/$defs/{model}"
        return self.body.model_json_schema(ref_template=at)

    async def authorize(self, request: Request) -> None:  # what is not async takes a thread
        """Let in who knows the token: as bearer, or, for browsers, as the password of any name.

        Raises:
            HTTPException: 401.
        """
        if self.token is None:
            return
        scheme, _, told = request.headers.get("authorization", "").partition(" ")
        known = told.strip().encode("latin-1")  # as it came
        if scheme.lower() == "basic":
            try:
                known = base64.b64decode(known, validate=True).partition(b":")[2]
            except ValueError:
                known = b""
        if scheme.lower() not in ("bearer", "basic") or not hmac.compare_digest(known, self.token):
            ways = {"WWW-Authenticate": 'Bearer, Basic realm="skytune"'}
            raise HTTPException(401, "send the header `Authorization: Bearer TOKEN`", ways)

    async def rows(self, request: Request) -> tuple[list[Row], bool]:
        """Return the rows of a request, and whether it asks for logits.

        Raises:
            HTTPException: 400, 408, 413, 415, 422 or 429, with what is wrong.
        """
        try:
            asked: Any = self.body.model_validate_json(await self._body(request))
        except ValidationError as error:
            raise HTTPException(422, _line(error, str(self.body.model_fields["inputs"].description))) from None
        given = [row if isinstance(row, BaseModel) else [(TEXT, row)] for row in asked.inputs]
        return [{name: value for name, value in row if value is not None} for row in given], asked.logits

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body_bytes
        # A page in a browser on the same machine can send anything else without asking first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send JSON, with the header `Content-Type: application/json`")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "send the body uncompressed")
        told = request.headers.get("content-length", "")
        expected = min(int(told), most) if told.isascii() and told.isdecimal() and len(told) < 20 else most
        if self.reading + expected > BODIES * most:
            raise HTTPException(429, "too many large requests at once", {"Retry-After": "1"})
        self.reading += expected
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                return await self._read(request, most)
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self.limits.read_seconds:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client went away") from None
        finally:
            self.reading -= expected

    async def _read(self, request: Request, most: int) -> bytes:
        parts, size = list[bytes](), 0
        # One that is too large is read on for a while all the same: a client that still sends does not see an answer.
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > (1 + BODIES) * most:
                break
            else:
                parts.clear()
        if size > most:
            raise HTTPException(413, f"the body is larger than {most:,} bytes")
        return b"".join(parts)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def body_model(form: Form, limits: Limits) -> type[BaseModel]:
    """Return what the body of `/predict` is, for rows of a form."""

    def sound(text: str) -> str:
        if not text.strip():
            raise ValueError("is blank")
        return text

    def short(row: Any) -> Any:
        texts = row if isinstance(row, (list, str)) else filter(None, dict(row).values())
        if (size := sum(map(len, texts))) > limits.characters:
            raise ValueError(f"has {size:,} letters; a row has at most {limits.characters:,}")
        return row

    text = Annotated[str, Field(min_length=1, max_length=limits.characters), AfterValidator(sound)]
    texts: dict[str, Any] = {TEXT: (text, ...), PAIR: (text | None, None)}
    pair = create_model("Texts", __base__=_Strict, **texts)
    image: dict[str, Any] = {IMAGE: (Base64Bytes, ...)}
    rows: dict[Form, tuple[Any, Any, str]] = {
        "text": (
            text | pair,
            ["a fine film", "two dull hours"],
            "a text, or a pair; one text may stand without a list",
        ),
        "words": (Annotated[list[text], Field(min_length=1)], [["a", "fine", "film"]], "a list of words"),
        "image": (create_model("Picture", __base__=_Strict, **image), [{IMAGE: PIXEL}], "an image: base64 of its file"),
    }
    row, example, about = rows[form]
    checked = row if form == "image" else Annotated[row, AfterValidator(short)]
    many = Annotated[list[checked], Field(min_length=1, max_length=limits.rows)]  # type: ignore[valid-type]
    alone = BeforeValidator(lambda rows: [rows] if isinstance(rows, str) else rows, json_schema_input_type=text | many)
    fields: dict[str, Any] = {
        "inputs": (Annotated[many, alone] if form == "text" else many, Field(description=f"Rows, each {about}.")),
        "logits": (bool, Field(False, description="Send the model's own numbers, too.")),
    }
    made = create_model("Request", __base__=_Strict, **fields)
    made.model_config["json_schema_extra"] = {"example": {"inputs": example}}
    return made


def _line(error: ValidationError, rows: str) -> str:
    """Return what is wrong with a body: where it looks most like what it should be, without what the client sent.

    Args:
        rows: what rows are, for who sent something else.
    """
    found = max(error.errors(include_url=False, include_input=False), key=lambda one: len(one["loc"]))
    names = {"inputs", "logits", TEXT, PAIR, IMAGE}
    where = ".".join(str(part) for part in found["loc"] if isinstance(part, int) or part in names)
    hint = f". {rows}" if where.startswith("inputs") and found["type"] != "value_error" else ""
    return f"{where}: {found['msg'].removeprefix('Value error, ')}{hint}".removeprefix(": ")
