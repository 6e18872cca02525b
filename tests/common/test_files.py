"""Files are written as a whole or not at all."""

from pathlib import Path

import pytest

from skytune.common.files import replacing


@pytest.mark.parametrize("flush", [False, True])
def test_a_file_takes_its_place_in_one_rename(tmp_path: Path, flush: bool) -> None:
    file = tmp_path / "new" / "a.txt"
    with replacing(file, flush=flush) as part:
        part.write_text("first")
        assert not file.exists() and part.parent == file.parent
    with replacing(file, "mark", flush=flush) as part:
        part.write_text("second")
        assert file.read_text() == "first"
    assert [path.read_text() for path in file.parent.iterdir()] == ["second"]


def test_whoever_fails_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("first")
    for begun in (True, False):
        with pytest.raises(KeyboardInterrupt), replacing(file) as part:
            if begun:
                part.write_text("half")
            raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), replacing(file):
        pass  # nothing was written
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "first"}
