"""What a request may be: read within limits, checked before any of it is computed; what is wrong is said in a line."""

import asyncio
import base64
import hmac
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from ..common.json import load_json
from ..data.images import IMAGE
from .predictor import PAIR, TEXT, Form, Row

PIXEL = "R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs="
"""The smallest image, as an example."""

BODIES = 16
"""Bodies of the largest size that are in memory at once; as many again are read and thrown away of one too large."""


@dataclass(frozen=True)
class Limits:
    """How much may be asked for at once."""

    rows: int = 256
    """Rows of one request."""

    characters: int = 20_000
    """Letters of one row."""

    body_bytes: int = 4 * 2**20
    """Bytes of one request's body."""

    read_seconds: float = 30
    """Seconds in which a body has to arrive."""


class Reader:
    """Reads requests for one server.

    Args:
        form: what a row is.
        token: what a client has to know; None: nothing.
    """

    def __init__(self, form: Form, limits: Limits, token: str | None) -> None:
        self.form, self.limits = form, limits
        self.token = None if token is None else token.encode()
        self.reading = 0
        """Bytes that the bodies which are being read may come to."""

    def schema(self) -> dict[str, Any]:
        """Return what the body of `/predict` holds, as JSON schema."""
        text = {"type": "string", "minLength": 1, "maxLength": self.limits.characters}
        pair = {"type": "object", "properties": {TEXT: text, PAIR: text}, "required": [TEXT]}
        image = {"type": "object", "properties": {IMAGE: {"type": "string", "format": "byte"}}, "required": [IMAGE]}
        forms: dict[Form, tuple[Any, Any, str]] = {
            "text": ({"anyOf": [text, pair]}, ["a fine film", "two dull hours"], "a text, or a pair of them"),
            "words": ({"type": "array", "items": text, "minItems": 1}, [["a", "fine", "film"]], "a list of words"),
            "image": (image, [{IMAGE: PIXEL}], "an image: base64 of its file"),
        }
        row, example, about = forms[self.form]
        many = {"type": "array", "items": row, "minItems": 1, "maxItems": self.limits.rows}
        inputs = {"anyOf": [text, many]} if self.form == "text" else many
        about = f"Rows, each {about}." + (" A text alone may stand without its list." if self.form == "text" else "")
        logits = {"type": "boolean", "default": False, "description": "Send the model's own numbers, too."}
        return {
            "type": "object",
            "properties": {"inputs": {**inputs, "description": about}, "logits": logits},
            "required": ["inputs"],
            "additionalProperties": False,
            "example": {"inputs": example},
        }

    def authorize(self, request: Request) -> None:
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
        body = await self._body(request)
        try:
            return self._rows(load_json(body, dict))
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    def _rows(self, asked: dict[str, Any]) -> tuple[list[Row], bool]:
        """Return what the values of a body ask for.

        Raises:
            ValueError: with what is wrong; nothing of what the client sent is in it but names of places.
        """
        if set(asked) - {"inputs", "logits"}:
            raise ValueError("the body has a key that is neither `inputs` nor `logits`")
        logits, inputs = asked.get("logits", False), asked.get("inputs")
        if not isinstance(logits, bool):
            raise ValueError("logits: must be true or false")
        found = [inputs] if isinstance(inputs, str) and self.form == "text" else inputs
        if not isinstance(found, list) or not 0 < len(found) <= self.limits.rows:
            first = "a text, or " if self.form == "text" else ""
            raise ValueError(f"inputs: must be {first}a list of 1 to {self.limits.rows} rows")
        return [self._row(row, f"inputs.{number}") for number, row in enumerate(found)], logits

    def _row(self, row: Any, where: str) -> Row:
        if self.form == "image":
            return _image(row, where)
        words = self.form == "words"
        values: Row
        if words and isinstance(row, list) and row:
            values, texts = {TEXT: row}, row
        elif not words and isinstance(row, str):
            values, texts = {TEXT: row}, [row]
        elif not words and isinstance(row, dict) and set(row) in ({TEXT}, {TEXT, PAIR}):
            values, texts = row, list(row.values())
        else:
            form = "a list of words" if words else f'a text, or an object of "{TEXT}" and "{PAIR}"'
            raise ValueError(f"{where}: must be {form}")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where}: holds something that is no text")
        if (size := sum(map(len, texts))) > self.limits.characters:
            raise ValueError(f"{where}: has {size:,} letters; a row has at most {self.limits.characters:,}")
        if not all(text.strip() for text in texts):
            raise ValueError(f"{where}: {'a word' if words else 'the text'} is blank")
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where}: holds half of a surrogate pair, which is no character") from None
        return values

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


def _image(row: Any, where: str) -> Row:
    if not isinstance(row, dict) or set(row) != {IMAGE} or not isinstance(row[IMAGE], str):
        raise ValueError(f'{where}: must be an object with "{IMAGE}": base64 of an image file')
    try:
        return {IMAGE: base64.b64decode(row[IMAGE], validate=True)}
    except ValueError:
        raise ValueError(f"{where}.{IMAGE}: is no base64") from None
