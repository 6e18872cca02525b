import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.common.json import load_json

BAD = [b"", b"{", b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe\xfd", b"9" * 5000, b"nul", "é".encode("utf-16")[:3]]


@pytest.mark.parametrize("data", [*BAD, None, 3, ["{}"]], ids=lambda data: repr(data)[:16])
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        load_json(data)


def test_type_and_size_are_held() -> None:
    assert load_json(b'{"a": [1]}', dict) == {"a": [1]}
    with pytest.raises(ValueError, match="list, not dict"):
        load_json(b"[1]", dict)
    with pytest.raises(ValueError, match="more than 10"):
        load_json(b'"01234567890"', largest=10)


@given(st.binary(max_size=40))
def test_bytes_of_any_kind_raise_nothing_else(data: bytes) -> None:
    try:
        value = load_json(data)
    except ValueError:
        return
    assert b"NaN" in data or json.loads(data) == value
