"""What a promotion leaves: the page in the run's folder, and the stage's tag on the Hub."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, ModelStage, UploadConfig, UserError
from skytune.config.compose import compose_run, run_to_promote
from skytune.job import JobDir
from skytune.release.decision import Check, Decision
from skytune.release.gate import base_of
from skytune.release.promotion import model_of, tell, with_page
from skytune.release.publish import publish

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_tag_follows_the_stage(scored: Any, hub: Any, monkeypatch: Any, caplog: Any) -> None:
    from skytune.checkpoint.retry import Retry

    fast = Retry(deadline_seconds=0.2, first_seconds=0.02, longest_seconds=0.1)
    monkeypatch.setattr("skytune.release.destination.Retry", lambda: fast)
    runs = [scored(max_steps=steps) for steps in (1, 2)]
    upload = UploadConfig(url="hf://me/mine")
    commits = [publish(str(JobDir(run.folder).model), upload)["commit"] for run in runs]
    assert commits[0] != commits[1]
    check = Check("better by more than chance", "accuracy 0.9 against 0.8", "p", True)
    decision = Decision(model_of(runs[0]), "production", runs[0].key, "", True, 16, "accuracy", (0.8, 0.9), [check])
    first = tell(with_page(decision, runs[0]), runs[0])
    assert (runs[0].folder / "outputs" / "promotion.html").read_text() == first["page"]
    assert hub.tags["me/mine"] == {"production": commits[0]} and first["tag"] == f"hf://me/mine at {commits[0]}"
    tell(with_page(replace(decision, challenger=runs[1].key), runs[1]), runs[1])
    assert hub.tags["me/mine"] == {"production": commits[1]}
    refused = tell(with_page(replace(decision, accepted=False), runs[0]), None)
    assert "tag" not in refused and hub.tags["me/mine"] == {"production": commits[1]}
    back = tell(with_page(Decision("m", "production", "old-1", "new-1", True, kind="rollback")), runs[0])
    assert hub.tags["me/mine"] == {"production": commits[0]} and "old-1 is production of m again" in back["line"]
    hub.fault = lambda method, path: 503
    failed = tell(with_page(replace(decision, challenger=runs[1].key), runs[1]), runs[1])
    assert failed["accepted"] and "gave up on setting the tag production" in failed["tag_failed"]
    assert "THE TAG production IS AS IT WAS" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pipeline=promote"],
            r"^pipeline=promote needs checkpoint=PATH \(a run's outputs/model\) and stage=production",
        ),
        (["pipeline=promote", "stage=production"], r"^pipeline=promote needs checkpoint=PATH"),
        (
            ["stage=production", "pipeline=data"],
            r"^promote\.stage=production has an effect only on promote and training",
        ),
        (["promote=staging", "promote.rollback=true"], r"^promote\.rollback=true needs pipeline=promote"),
        (["promote.force=true"], r"^promote\.rollback and promote\.force need promote\.stage"),
        (["promote=best"], r"^promote\.stage='?best.*staging, production"),
        (["promote=staging", "promote.alpha=2"], r"^promote\.alpha=2.*: must lie between 0 and 1"),
        (["promote=staging", "promote.model=a/b"], r"^promote\.model='a/b': letters, digits"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_run(CONFIGS, words)


def test_the_short_words_and_the_runs_own_configuration(scored: Any) -> None:
    """What a run's file wants to have called is called where the command names it."""
    assert compose_run(CONFIGS, ["promote=staging"]).promote.stage is ModelStage.staging
    run = scored(max_steps=1, callbacks={"end": {"_target_": "worker_callbacks.End"}}, compute={"device": "cpu"})
    words = ["pipeline=promote", f"checkpoint={JobDir(run.folder).model}", "stage=production"]
    assert run_to_promote(words) == str(JobDir(run.folder).model) and run_to_promote(words[1:]) is None
    with pytest.raises(UserError, match=r"^checkpoint\.path=.*: its configuration wants callbacks\.end\._target_="):
        compose_run(CONFIGS, words, base=base_of(words[1].partition("=")[2]))
    config = compose_run(CONFIGS, [*words, "plugins=[worker_callbacks]"], base=base_of(words[1].partition("=")[2]))
    assert config.model.name == run.setting("model.name") and config.max_steps == 1
    assert (config.resume, config.upload.url, config.compute.device.value) == ("never", None, "auto")
