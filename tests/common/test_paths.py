from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.common.paths import UnsafeNameError, check_name, resolve_below

REFUSED = [
    *("", ".", "..", "../x", "/abs", "a/../../b", "a/../b", "a//b", "a/", "./a", "~/../x", "a\\..\\b", "C:x", "c:/x"),
    *("a\0b", "a\nb", "\ud800", "x" * 300, "é" * 200, "a/" * 600 + "a", None, 3, b"a", ["a"], {"a": 1}),
]


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name)[:20])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: object) -> None:
    for refuse in (check_name, lambda name: resolve_below(tmp_path, name)):
        with pytest.raises(UnsafeNameError) as refused:
            refuse(name)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["model.safetensors", "a/b/c.json", ".hidden", "..a", "mit Leerzeichen", "ünï.txt"])
def test_a_plain_name_lies_below_the_folder(tmp_path: Path, name: str) -> None:
    assert resolve_below(tmp_path, name) == tmp_path / name


def test_a_link_that_leads_out_is_refused_and_one_that_stays_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    (folder / "file").symlink_to("/etc/passwd")
    (folder / "stays").symlink_to("in")
    (folder / "circle").symlink_to("circle")
    for name in ("out", "out/x", "file", "circle"):
        with pytest.raises(UnsafeNameError):
            resolve_below(folder, name)
    assert resolve_below(folder, "stays/x") == folder / "stays" / "x"


@given(st.text(alphabet="./\\a:C\0", max_size=12))
def test_whatever_is_accepted_lies_below_the_folder(name: str) -> None:
    try:
        path = resolve_below("/nowhere/folder", name)
    except UnsafeNameError:
        return
    assert Path("/nowhere/folder") in path.resolve().parents
