"""The trained model goes where it is wanted when the run ends; where that fails, the run does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.retry import Retry
from skytune.config import ConfigError, RunConfig, UserError, from_dict


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)
    monkeypatch.setattr("skytune.training.callbacks.upload.Retry", lambda: fast)


@pytest.fixture
def hub(start_hub: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = start_hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    return server


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_into_a_folder_that_loads(run_job: Any, here: None, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    target = tmp_path / "a" / "b"
    done = run_job(max_steps=2, upload={"url": f"file://{target}"})
    assert done.result["uploaded"] == f"file://{target}"
    assert contents(target) == contents(done.job.model)
    assert AutoModelForSequenceClassification.from_pretrained(target).config.id2label[1] == "positive"
    assert AutoTokenizer.from_pretrained(target)("good film")["input_ids"]


def test_to_an_object_store_and_to_the_hub(run_job: Any, here: None, hub: Any) -> None:
    import fsspec

    done = run_job(max_steps=2, upload={"url": "memory://models/mine"})
    system = fsspec.filesystem("memory")
    assert {name: system.cat_file(f"/models/mine/{name}") for name in contents(done.job.model)} == contents(
        done.job.model
    )

    hub.failing = [503]  # once: it is tried again
    done = run_job(max_steps=2, upload={"url": "hf://me/mine", "private": False})
    assert hub.visibility["me/mine"] in (False, "public")
    files = {name: data for name, data in hub.files("me/mine").items() if name != ".gitattributes"}
    assert files == contents(done.job.model)
    assert hub.messages("me/mine")[1:] == ["Upload the trained model"]
    run_job(max_steps=2, upload={"url": "hf://me/other/folder"})
    assert hub.visibility["me/other"] in (True, "private")
    assert "folder/model.safetensors" in hub.files("me/other")


def test_a_failure_is_told_and_the_model_stays(run_job: Any, here: None, hub: Any, caplog: Any, capfd: Any) -> None:
    hub.token = "Bearer another"
    done = run_job(max_steps=2, upload={"url": "hf://me/mine"})
    assert done.result["status"] == "completed"
    assert "uploaded" not in done.result
    assert "hf://me/mine: the Hub does not accept the token" in done.result["upload_failed"]
    assert (done.job.model / "model.safetensors").is_file()
    assert "MODEL NOT UPLOADED" in caplog.text + capfd.readouterr().out


def test_where_it_goes_does_not_make_another_run(run_job: Any, here: None, tmp_path: Path) -> None:
    first = run_job(max_steps=2)
    second = run_job(max_steps=2, upload={"url": str(tmp_path / "there")})
    assert first.result["run_key"] == second.result["run_key"]
    assert (tmp_path / "there" / "model.safetensors").is_file()


def test_an_address_that_cannot_be_is_told_before_training(run_job: Any, here: None) -> None:
    with pytest.raises(UserError, match=r"^upload\.url=nowhere://x: .*nowhere"):
        run_job(max_steps=2, upload={"url": "nowhere://x"})
    with pytest.raises(ConfigError, match=r"^upload\.url=hf://mine: write hf://user/name"):
        from_dict(RunConfig, {"upload": {"url": "hf://mine"}})
