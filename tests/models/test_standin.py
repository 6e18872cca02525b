"""A model whose files are elsewhere: architecture and tokenizer stand in, the weights come from a checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ModelConfig, UserError
from skytune.models import AWAITS, NEW, build_model, fetch, lacks_files, load_tokenizer, resolve, stand_in, standin

LABELS = ["bad", "good"]


@pytest.fixture(autouse=True)
def _none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "_current", None)


@pytest.fixture
def moved(families: dict[str, str], tmp_path: Path) -> tuple[ModelConfig, Any, str, str]:
    """A model as a machine saw it that is not here: config, network, fingerprint, folder of what it left."""
    own, left = tmp_path / "own", tmp_path / "left"
    shutil.copytree(families["bert"], own)
    config = ModelConfig(name=str(own), freeze_backbone=True)
    model, seen = build_model(config, None, LABELS, 3, str(own)), resolve(config).fingerprint
    shutil.move(own, left)
    for weights in left.glob("*.safetensors"):
        weights.unlink()
    return config, model, seen, str(left)


def test_the_same_network_is_built_but_for_its_weights(moved: Any) -> None:
    config, model, seen, left = moved
    assert lacks_files(config)
    stand_in(config, left, seen, getattr(model, NEW))
    assert not lacks_files(config)
    source = resolve(config)
    assert (source.path, source.fingerprint) == (left, seen)
    assert len(load_tokenizer(config, source)) == len(load_tokenizer(config)) > 5
    found = build_model(config, source.path, LABELS, 3, left)
    assert getattr(found, AWAITS) and not hasattr(model, AWAITS)
    assert getattr(found, NEW) == getattr(model, NEW) != []
    first, second = model.state_dict(), found.state_dict()
    assert {n: (t.shape, t.dtype) for n, t in first.items()} == {n: (t.shape, t.dtype) for n, t in second.items()}
    learns = [{name for name, p in m.named_parameters() if p.requires_grad} for m in (model, found)]
    assert learns[0] == learns[1] != set()
    found.load_state_dict(first)


def test_only_the_model_it_was_made_for(moved: Any, families: dict[str, str]) -> None:
    config, _, seen, left = moved
    stand_in(config, left, seen, [])
    other = ModelConfig(name=families["distilbert"])
    assert resolve(other).path == families["distilbert"] and not lacks_files(other)
    with pytest.raises(UserError, match="no such folder"):
        resolve(ModelConfig(name="/no/such/model"))


def test_a_tokenizer_of_its_own_may_be_what_is_missing(moved: Any, families: dict[str, str]) -> None:
    config, _, _, left = moved
    config = ModelConfig(name=families["bert"], tokenizer=config.name)
    assert lacks_files(config)
    stand_in(config, left, "seen", [])
    assert resolve(config).fingerprint == "seen"
    assert fetch(config.name, weights=False) == left == fetch(str(config.tokenizer), weights=False)


def test_a_model_of_ones_own_keeps_its_code(moved: Any) -> None:
    config, _, _, left = moved
    own = ModelConfig(_target_="torch.nn.Identity", tokenizer=config.name)
    assert lacks_files(own)
    stand_in(own, left, "seen", [])
    source = resolve(own)
    assert (source.path, source.fingerprint) == (None, "seen")
    assert load_tokenizer(own, source) is not None
