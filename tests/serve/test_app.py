"""Requests of every kind, against the application with a real model: what is wrong is said, with 4xx, never 5xx."""

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skytune.config import RunConfig, from_dict
from skytune.serve.app import make_app
from skytune.serve.page import facts_of
from skytune.serve.predictor import Answer, Predictor
from skytune.serve.requests import Limits, Reader

LIMITS = Limits(rows=5, characters=200, body_bytes=10_000, read_seconds=0.2, queue=20, batch_rows=4)
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def predictor(saved: Callable[[str], Path]) -> Predictor:
    folder = saved("text-classification")
    html = "<script>alert(1)</script> [x](javascript:alert(1))"
    card = f"---\nlicense: mit\n---\n# The card\n{html}\n\n| a |\n|---|\n| 2 |\n"
    (folder / "README.md").write_text(card)
    return Predictor(str(folder), from_dict(RunConfig, {"compute": {"device": "cpu"}}))


@asynccontextmanager
async def client(
    predictor: Any, token: str | None = None, limits: Limits = LIMITS, form: Any = "text"
) -> AsyncIterator[httpx.AsyncClient]:
    facts = {"name": "m", "task": "t", "version": "1", "card": "", "scores": {}, "scored_rows": 0, "facts": {}}
    if isinstance(predictor, Predictor):
        facts = facts_of(predictor, limits, "http://test:81")
    app = make_app(predictor, Reader(form, limits, token), facts)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.app.router.lifespan_context(app.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as made,
    ):
        yield made


def ask(predictor: Any, *bodies: Any, **more: Any) -> list[httpx.Response]:
    """Return the answers to bodies: bytes, or what JSON is made of."""

    async def all_of_them() -> list[httpx.Response]:
        async with client(predictor, **more) as made:
            contents = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
            return [await made.post("/predict", content=content, headers=JSON) for content in contents]

    return asyncio.run(all_of_them())


WRONG: dict[str, Any] = {
    "nothing": b"",
    "half": b'{"inputs": ["a"',
    "no JSON": b"\xff\xfe\x00",
    "null": None,
    "a list": ["a"],
    "a number": 3,
    "no inputs": {},
    "inputs null": {"inputs": None},
    "inputs number": {"inputs": 3},
    "NaN": b'{"inputs": NaN}',
    "NaN inside": b'{"inputs": ["a", NaN]}',
    "infinity": b'{"inputs": ["a", -Infinity]}',
    "a number inside": {"inputs": ["a", 3]},
    "true": {"inputs": [True]},
    "words": {"inputs": [["a", "b"]]},
    "empty list": {"inputs": []},
    "too many": {"inputs": ["a"] * 6},
    "too long": {"inputs": ["a" * 201]},
    "too long together": {"inputs": [{"text": "a" * 101, "text_pair": "a" * 100}]},
    "empty text": {"inputs": ["a", ""]},
    "blank": {"inputs": " \t\n "},
    "odd blank": {"inputs": "\u2003"},
    "surrogate": b'{"inputs": "\\ud800"}',
    "pair without text": {"inputs": [{"text_pair": "a"}]},
    "pair with more": {"inputs": [{"text": "a", "text_pair": "b", "more": "c"}]},
    "pair of numbers": {"inputs": [{"text": "a", "text_pair": 1}]},
    "unknown key": {"inputs": "a", "input": "b"},
    "logits number": {"inputs": "a", "logits": 1},
    "deep": b'{"inputs": ' + b"[" * 4_000,
    "deep and closed": b'{"inputs": ' + b"[" * 4_000 + b"]" * 4_000 + b"}",
    "deep objects": b'{"a":' * 1_500,
    "a long number": b'{"inputs": ' + b"9" * 9_000 + b"}",
    "many rows": b'{"inputs": [' + b'"",' * 3_000 + b'""]}',
    "many numbers": b'{"inputs": [' + b"1," * 4_000 + b"1]}",
}


def test_what_is_no_request_is_refused_in_one_line(predictor: Predictor) -> None:
    for name, answer in zip(WRONG, ask(predictor, *WRONG.values()), strict=True):
        assert answer.status_code == 422, (name, answer.text)
        assert len(answer.json()["detail"].splitlines()) == 1 and len(answer.content) < 400, name


def test_what_a_row_is_is_told_to_who_sent_something_else(predictor: Predictor) -> None:
    number, blank = (answer.json()["detail"] for answer in ask(predictor, {"inputs": ["a", 3]}, {"inputs": ["a", " "]}))
    assert number.startswith("inputs.1: Input should be a valid string. Rows, each a text, or a pair")
    assert blank == "inputs.1: is blank"


def test_a_word_list_is_asked_for_where_words_are_tagged(saved: Callable[[str], Path]) -> None:
    tagger = Predictor(str(saved("token-classification")), from_dict(RunConfig, {"compute": {"device": "cpu"}}))
    bodies: list[Any] = [{"inputs": [["a", "good", "film"], ["dull"]]}]
    bodies += [{"inputs": wrong} for wrong in ("a", ["a"], [[]], [["a", " "]], [["a", 1]], [[["a"]]], [{"text": "a"}])]
    found = ask(tagger, *bodies, form="words")
    assert [answer.status_code for answer in found] == [200] + [422] * 7
    assert [len(row["prediction"]) for row in found[0].json()["predictions"]] == [3, 1]


def test_an_image_comes_as_base64_and_as_nothing_else(tiny_vit: Path) -> None:
    from skytune.serve.requests import PIXEL

    sees = Predictor(str(tiny_vit), from_dict(RunConfig, {"compute": {"device": "cpu"}}))
    whole, text = {"image": PIXEL}, {"image": base64.b64encode(b"text").decode()}
    wrong: list[Any] = [
        "a",
        [PIXEL],
        [{"image": "?"}],
        [{"image": 3}],
        [{"path": "/etc/passwd"}],
        [{"image": ""}],
        [text],
    ]
    wrong += [[{**whole, "path": "/etc/passwd"}], [whole] * 6, [{"image": {"path": "/etc/passwd"}}]]
    found = ask(sees, {"inputs": [whole, whole]}, *({"inputs": value} for value in wrong), form="image")
    assert [answer.status_code for answer in found] == [200] + [422] * len(wrong)
    assert len(found[0].json()["predictions"]) == 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(["inputs", "logits", "text", "x"]), inner, max_size=3)
            ),
            max_leaves=8,
        ),
    )
)
def test_no_body_at_all_is_a_fault_of_the_server(predictor: Predictor, body: Any) -> None:
    wrapped = [body] if isinstance(body, bytes) else [body, {"inputs": body}, {"inputs": [body]}]
    for answer in ask(predictor, *wrapped):
        assert answer.status_code in (200, 422), answer.text


def test_answers_are_those_of_the_model_in_the_order_of_the_rows(predictor: Predictor) -> None:
    rows = ["good film", "bad", {"text": "a", "text_pair": "the plot"}, "dull cast is it", "bad"]
    (answer,) = ask(predictor, {"inputs": rows, "logits": True})
    found = answer.json()["predictions"]
    for row, told in zip(rows, found, strict=True):
        (wanted,) = predictor.answers([row if isinstance(row, dict) else {"text": row}])
        assert isinstance(wanted, Answer)
        assert np.abs(np.array(told["logits"]) - wanted.logits).max() <= 1e-6 * max(1, np.abs(wanted.logits).max())
        assert told["prediction"] == wanted.values["prediction"] and told["truncated"] is False
    plain = ask(predictor, {"inputs": "bad"})[0].json()["predictions"]
    assert list(plain[0]) == [
        "prediction",
        "probability",
        *(f"probability_{n}" for n in ("low", "even", "high")),
        "truncated",
    ]


def test_bodies_that_are_too_large_or_no_json(predictor: Predictor) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"inputs"'
        await asyncio.sleep(5)

    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 5_000

    async def run() -> list[int]:
        async with client(predictor) as made:
            found = [
                await made.post("/predict", content=b" " * 10_001, headers=JSON),
                await made.post("/predict", content=chunks(3), headers=JSON),
                await made.post("/predict", content=chunks(1_000), headers=JSON),
                await made.post("/predict", content=slow(), headers=JSON),
                await made.post("/predict", content=b"a", headers={"Content-Type": "text/plain"}),
                await made.post("/predict", content=b"a"),
                await made.post("/predict", content=b"a", headers={**JSON, "Content-Encoding": "gzip"}),
                await made.post("/predict", content=b"{}", headers={**JSON, "Content-Length": "9" * 5_000}),
                await made.get("/predict"),
                await made.get("/nothing"),
            ]
            return [answer.status_code for answer in found]

    assert asyncio.run(run()) == [413, 413, 413, 408, 415, 415, 415, 422, 405, 404]


class Held:
    """A model that computes once it is let."""

    def __init__(self) -> None:
        self.computing, self.go = threading.Event(), threading.Event()

    def answers(self, rows: Any) -> list[Any]:
        self.computing.set()
        self.go.wait(60)
        return [Answer({"prediction": row["text"]}, [0.0], False) for row in rows]


def test_a_full_queue_refuses_and_what_it_took_is_answered() -> None:
    held = Held()

    async def run() -> None:
        async with client(held, limits=replace(LIMITS, queue=6)) as made:

            def send(number: int) -> "asyncio.Future[httpx.Response]":
                return asyncio.ensure_future(made.post("/predict", json={"inputs": [f"a{number}"]}))

            asked = [send(0)]
            while not held.computing.is_set():
                await asyncio.sleep(0.01)
            asked += [send(number) for number in range(1, 30)]
            done: set[Any] = set()
            while len(done) < 30 - 1 - 6:  # one is being computed, six wait
                done = {one for one in asked if one.done()}
                await asyncio.sleep(0.01)
            assert {one.result().status_code for one in done} == {429}
            assert all(one.result().headers["retry-after"] == "1" for one in done)
            assert "skytune_queue_rows 6.0" in (await made.get("/metrics")).text
            held.go.set()
            for number, one in enumerate(asked):
                if one not in done:
                    answer = await one
                    assert answer.json()["predictions"][0]["prediction"] == f"a{number}"
            assert 'skytune_requests_total{path="/predict",status="429"} 23.0' in (await made.get("/metrics")).text

    asyncio.run(run())


def test_a_model_that_fails_is_said_in_one_line_and_the_server_goes_on() -> None:
    class Broken:
        def answers(self, rows: Any) -> list[Any]:
            return [RuntimeError("secret") if row["text"] == "bad" else Answer({}, [0.0], False) for row in rows]

    bad, good = ask(Broken(), {"inputs": "bad"}, {"inputs": "good"})
    assert (bad.status_code, good.status_code) == (500, 200) and "secret" not in bad.text


def test_a_token_is_asked_for(predictor: Predictor) -> None:
    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    async def run() -> None:
        async with client(predictor, token="tökén") as made:
            known = {"Authorization": "Bearer tökén".encode()}
            assert (await made.get("/health")).status_code == 200
            for path in ("/docs", "/metrics", "/openapi.json"):
                assert (await made.get(path)).status_code == 401
                assert (await made.get(path, headers=known)).status_code == 200
            body = {"inputs": "bad"}
            assert (await made.post("/predict", json=body, headers=known)).status_code == 200
            wrong: list[Any] = [
                "",
                "Bearer",
                "Bearer x",
                "tökén".encode(),
                "Basic x",
                "Basic " + "ä",
                basic("tökén"),
                basic("a:x"),
            ]
            for header in wrong:
                told = header.encode() if isinstance(header, str) else header
                answer = await made.post("/predict", json=body, headers={"Authorization": told})
                assert answer.status_code == 401 and "Bearer" in answer.headers["www-authenticate"]
            assert (await made.get("/docs", headers={"Authorization": basic("me:tökén")})).status_code == 200
            assert (await made.post("/predict", content=b" " * 20_000)).status_code == 401  # and is not read

    asyncio.run(run())


def test_the_page_needs_nothing_from_elsewhere_and_shows_the_card_as_text(predictor: Predictor) -> None:
    async def run() -> tuple[httpx.Response, httpx.Response]:
        async with client(predictor) as made:
            return await made.get("/docs"), await made.get("/openapi.json")

    docs, openapi = asyncio.run(run())
    page = docs.text
    assert "<h1>The card</h1>" in page and "license: mit" not in page and "<td>2</td>" in page
    assert "curl -s http://test:81/predict" in page
    assert "<script>alert" not in page and 'href="javascript' not in page
    assert not re.search(r"""(src|href)=["'](https?:)?//|@import|url\(""", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in docs.headers["content-security-policy"]
    schema = openapi.json()
    assert set(schema["paths"]) == {"/predict", "/health", "/metrics"}
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    (answer,) = ask(predictor, body["example"])
    assert answer.status_code == 200
