"""One promotion of a model at a time: whoever comes second says so, and changes nothing."""

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skytune.config import UserError
from skytune.steps import model_versions
from skytune.steps.model_versions import Version, one_at_a_time


def _store(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    stack = SimpleNamespace(artifact_store=SimpleNamespace(path=str(place)))
    monkeypatch.setattr(model_versions, "Client", lambda: SimpleNamespace(active_stack=stack))


def _promote(place: Path, start: Any, told: Any, done: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _store(patch, place)
        start.wait()
        try:
            with one_at_a_time("my model") as lease:
                lease.check(look=True)
                told.put("promoted")
                done.wait()
        except UserError as error:
            told.put(str(error))


def test_of_many_at_once_one_wins_and_the_others_say_so(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, done, told = context.Barrier(4), context.Event(), context.Queue()
    people = [context.Process(target=_promote, args=(tmp_path, start, told, done)) for _ in range(4)]
    for person in people:
        person.start()
    found = [told.get(timeout=600) for _ in people]
    done.set()
    for person in people:
        person.join(600)
        assert person.exitcode == 0
    assert found.count("promoted") == 1
    for line in sorted(set(found) - {"promoted"}):
        assert line.startswith("another promotion of my model is under way (process "), line
        assert line.endswith("nothing was changed; run this command again when that one has ended")


def test_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was frozen for long changes nothing when it comes back."""
    _store(monkeypatch, tmp_path)
    with one_at_a_time("m") as lease:
        lease.check(look=True)
    with one_at_a_time("m") as lease, one_at_a_time("other"):
        (tmp_path / "promotions" / "m" / "lease.json").unlink()
        with pytest.raises(UserError, match="has taken over"):
            lease.check(look=True)


def test_a_version_whose_folder_changed_is_told(tiny_classifier: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_classifier, folder)
    version = Version.of("mine-0123456789ab", str(folder))
    version.check()
    assert version.name == f"mine-0123456789ab-{version.weights[:8]}"
    (folder / "model.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match=rf"the version {version.name} lies in .*, and its weights are others now: put"):
        version.check()
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"and that folder is gone: put it back, or promote another model with promote"):
        version.check()
