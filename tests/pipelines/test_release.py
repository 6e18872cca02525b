"""Models published with their card by the real command, whose own command gives the same weights; and promoted."""

import contextlib
import json
import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from skytune.models import hash_file


@pytest.fixture(scope="module")
def checkout(new_checkout: Any) -> Any:
    return new_checkout(warm=True)


@pytest.fixture(scope="module")
def published(checkout: Any, small: list[str]) -> tuple[Any, Path]:
    """A training that publishes into a folder."""
    target = checkout.home / "published"
    return checkout.run(*small, f"upload.url={target}", "upload.license=mit"), target


def run_folder(checkout: Any) -> Path:
    (folder,) = (path for path in (checkout.home / "skytune" / "runs").iterdir() if (path / "job.json").is_file())
    return folder


def test_a_training_publishes_at_its_end(checkout: Any, published: tuple[Any, Path]) -> None:
    done, target = published
    assert done.code == 0, done.err
    assert re.search(rf"published +{target}\n", done.out), done.out
    card = ModelCard.load(target / "README.md")
    scores = json.loads((target / "test_results.json").read_text())
    told = {r.metric_type: r.metric_value for r in card.data.eval_results if r.dataset_split == "test"}
    assert told == scores["metrics"] and card.data.license == "mit"
    assert hash_file(target / "model.safetensors") in card.text
    assert checkout.statuses()["publish_model"] == "completed"


def test_the_cards_command_gives_the_same_weights(checkout: Any, published: tuple[Any, Path], tmp_path: Path) -> None:
    """In another home, where nothing is known of the run."""
    _, target = published
    card = ModelCard.load(target / "README.md")
    (command,) = re.findall(r"```\n(python .*)\n```", card.text)
    assert "upload" not in command
    words = shlex.split(command)
    homes = {"SKYTUNE_HOME": str(tmp_path / "home"), "ZENML_CONFIG_PATH": str(tmp_path / "zenml")}
    done = checkout.python(str(checkout.source / words[1]), *words[2:], **homes)
    assert done.code == 0, done.err
    (weights,) = (tmp_path / "home" / "runs").glob("*/outputs/model/model.safetensors")
    assert f"model.safetensors: SHA-256 `{hash_file(weights)}`" in card.text


def test_published_later_where_the_place_was_away(checkout: Any, published: tuple[Any, Path], small: list[str]) -> None:
    """The training stays done, says so by 76, and gives the command that publishes later."""
    wall = checkout.home / "wall"
    wall.write_text("a file")
    done = checkout.run(*small, f"upload.url={wall}/models")
    assert done.code == 76 and "MODEL NOT PUBLISHED" in done.out, done.out + done.err
    (later,) = re.findall(r"trained, but not everything could be saved:.*`(python .*)` does it later", done.err)
    wall.unlink()
    again = checkout.run(*shlex.split(later)[2:])
    assert again.code == 0 and f"published: {wall}/models" in again.out, again.err
    assert (wall / "models" / "model.safetensors").is_file()
    assert checkout.statuses() == {"publish_model": "completed"}


def test_what_cannot_be_published_is_one_line(checkout: Any, published: Any, tiny_classifier: Path) -> None:
    for words, told in (
        (["pipeline=publish"], "pipeline=publish needs checkpoint=PATH (a run's outputs/model) and upload.url=PLACE"),
        ([f"checkpoint={tiny_classifier}", "pipeline=publish", "upload.url=/x"], "does not lie in the folder of a run"),
        (["pipeline=publish", "checkpoint=/nowhere", "upload.url=/x"], "checkpoint=/nowhere"),
        (["upload.url=gopher://x"], "upload.url=gopher://x: "),
    ):
        done = checkout.run(*words)
        assert done.code == 1 and done.err.startswith("error: ") and told in done.err and done.err.count("\n") == 1


MODEL = "reviews.csv-text-classification"


def stages(checkout: Any) -> dict[str, str]:
    """Return the stage of every version, by the run's key, from ZenML's tables."""
    place = checkout.home / "zenml/local_stores/default_zen_store/zenml.db"
    with contextlib.closing(sqlite3.connect(place)) as database:
        found = database.execute("select name, stage from model_version").fetchall()
    return {name.rpartition("-")[0]: stage for name, stage in found}


def model_in(out: str) -> str:
    (place,) = re.findall(r"^  model +(\S+)$", out, flags=re.MULTILINE)
    return place


@pytest.fixture(scope="module")
def promoted(checkout: Any, published: tuple[Any, Path], small: list[str]) -> tuple[str, str]:
    """The keys of two models: the first was in production until a better one came, at the end of its training."""
    first = model_in(published[0].out)
    done = checkout.run("pipeline=promote", f"checkpoint={first}", "stage=production")
    assert done.code == 0, done.out + done.err
    keys = [Path(first).parts[-3]]
    assert re.search(rf"^{keys[0]} is production of {MODEL}: accuracy 0\.", done.out, flags=re.MULTILINE), done.out
    assert stages(checkout) == {keys[0]: "production"}
    done = checkout.run(*small, "epochs=8", "promote=production")
    assert done.code == 0, done.out + done.err
    keys.append(Path(model_in(done.out)).parts[-3])
    assert re.search(rf"promoted +{keys[1]} is production of {MODEL}", done.out)
    assert checkout.statuses()["promote_model"] == "completed"
    return keys[0], keys[1]


def test_a_better_one_is_promoted_and_the_page_shows_why(checkout: Any, promoted: tuple[str, str]) -> None:
    assert stages(checkout) == {promoted[0]: "archived", promoted[1]: "production"}
    page = (checkout.home / "skytune" / "runs" / promoted[1] / "outputs" / "promotion.html").read_text()
    assert "Promoted." in page and promoted[0] in page and "right in one alone" in page


def test_a_training_whose_model_is_not_promoted(checkout: Any, promoted: tuple[str, str], small: list[str]) -> None:
    """The training is done, and the command says by its exit code that its model did not get the stage."""
    done = checkout.run(*small, "epochs=8", "promote=production")
    assert done.code == 1 and Path(model_in(done.out), "model.safetensors").is_file(), done.err
    told = f"{promoted[1]} is not promoted to production of {MODEL}: these very weights are there already"
    assert done.err.splitlines()[-1] == f"error: not promoted: {told}"


def test_one_promotion_at_a_time_and_back_again(checkout: Any, promoted: tuple[str, str]) -> None:
    from skytune.checkpoint.lease import acquire
    from skytune.checkpoint.store import Store

    first, second = promoted
    back = ["pipeline=promote", "promote.rollback=true", "stage=production", f"promote.model={MODEL}"]
    (store,) = (checkout.home / "zenml" / "local_stores").glob("*/promotions")
    lease = acquire(Store.open(str(store), MODEL), "another")
    try:
        done = checkout.run(*back)
        assert done.code == 1 and f"error: another promotion of {MODEL} is under way (process " in done.err, done.err
        assert stages(checkout)[second] == "production"
    finally:
        lease.release()
    done = checkout.run(*back)
    assert done.code == 0 and f" is production of {MODEL} again; {second}" in done.out, done.out + done.err
    assert stages(checkout) == {first: "production", second: "archived"}
    # What holds a stage is not taken away.
    done = checkout.python(str(checkout.source / "src" / "runs.py"), "rm", first, "--yes")
    assert f"it is production of {MODEL}: promote another model first" in done.out + done.err, done.out + done.err
    assert (checkout.home / "skytune" / "runs" / first / "outputs" / "model").is_dir()
    done = checkout.run(*back)
    assert done.code == 1 and "is the first that" in done.err
