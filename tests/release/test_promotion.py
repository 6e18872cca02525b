"""What a promotion leaves: the page in the run's folder, and the stage's tag on the Hub."""

from dataclasses import replace
from typing import Any

from skytune.config import UploadConfig
from skytune.job import JobDir
from skytune.release.decision import Check, Decision
from skytune.release.promotion import model_of, returned, tell, written
from skytune.release.publish import publish


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
    first = tell(written(decision, runs[0]), runs[0])
    assert (runs[0].folder / "outputs" / "promotion.html").read_text() == first["page"]
    assert hub.tags["me/mine"] == {"production": commits[0]} and first["tag"] == f"hf://me/mine at {commits[0]}"
    tell(written(replace(decision, challenger=runs[1].key), runs[1]), runs[1])
    assert hub.tags["me/mine"] == {"production": commits[1]}
    refused = tell(written(replace(decision, accepted=False), runs[0]), None)
    assert "tag" not in refused and hub.tags["me/mine"] == {"production": commits[1]}
    back = tell(returned("m", "production", "new-1", "old-1"), runs[0])
    assert hub.tags["me/mine"] == {"production": commits[0]} and "old-1 is production of m again" in back["line"]
    hub.fault = lambda method, path: 503
    failed = tell(written(replace(decision, challenger=runs[1].key), runs[1]), runs[1])
    assert failed["accepted"] and "gave up on setting the tag production" in failed["tag_failed"]
    assert "THE TAG production IS AS IT WAS" in caplog.text
