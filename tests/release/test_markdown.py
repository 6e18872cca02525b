"""Whatever a class is called, it is a text in the card: in its tables, its metadata, and its code."""

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from skytune.release.markdown import escaped, fenced, plain

NASTY = st.text(st.one_of(st.characters(), st.sampled_from("|`*_<>[]()!#~&:-\n\r\t\\ \u2028\x00w.")), max_size=40)


@given(NASTY)
def test_a_cell_is_one_line_without_borders_or_links(text: str) -> None:
    cell = escaped(text)
    assert cell.isprintable() and "\n" not in cell
    bare = re.sub(r"\\.", "", cell.replace("&#8203;", ""))
    assert not set(bare) & set("`*_<>[]|~&!#\\$^{}@") and "://" not in cell and "www." not in cell.lower()
    assert re.sub(r"\\(.)", r"\1", cell.replace("&#8203;", "")) == plain(text), "and a reader sees the text"


@given(NASTY)
def test_metadata_are_read_as_they_were_written(text: str) -> None:
    block = yaml.safe_dump({"name": plain(text)}, allow_unicode=True)
    assert yaml.safe_load(block) == {"name": plain(text)} and "\n---" not in f"\n{block}".removesuffix("\n---\n")


@given(NASTY)
def test_code_cannot_end_its_block(text: str) -> None:
    first, *inside, last = fenced(text).split("\n")
    assert first == last and set(first) == {"`"}
    assert "\n".join(inside) == text and not any(first in line for line in inside)
