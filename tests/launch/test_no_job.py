"""A worker that is given a folder which is no job directory says so, and makes nothing there."""

from pathlib import Path

import pytest

from skytune.training import worker
from skytune.training.__main__ import main


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(code: int) -> None:
        raise AssertionError(f"the process would have ended with {code}")

    monkeypatch.setattr(worker.os, "_exit", ended)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.mark.parametrize("there", [True, False], ids=["empty folder", "no folder"])
def test_a_slip_of_the_pen_leaves_nothing(tmp_path: Path, there: bool, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "typo"
    if there:
        folder.mkdir()
    assert main([str(folder)]) == 1
    assert capsys.readouterr().err == f"error: {folder} is no job directory: job.json is missing\n"
    assert not list(folder.glob("*")) and folder.exists() == there


def test_a_machine_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main([str(tmp_path / "typo")]) == 1
    assert capsys.readouterr().err == ""


def test_a_file_is_no_job_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert main([str(tmp_path / "notes.txt")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'notes.txt'} is no job directory: job.json is missing\n"
