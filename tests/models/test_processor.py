import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skytune.config import ModelConfig, UserError
from skytune.data.pixels import Pixels
from skytune.models import load_processor, read_processor

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8))


def test_the_processor_of_a_model_is_the_one_that_computes_with_pillow(tiny_vit: Path) -> None:
    found = load_processor(ModelConfig(name=str(tiny_vit)), None)
    assert type(found).__name__ == "ViTImageProcessorPil" and Pixels(found).of(PICTURE).shape == (3, 16, 16)
    assert Pixels(load_processor(ModelConfig(name=str(tiny_vit)), 40)).of(PICTURE).shape == (3, 40, 40)


def test_a_processor_that_cuts_the_middle_out_has_the_size_that_is_asked_for(tmp_path: Path) -> None:
    from transformers import ConvNextImageProcessorPil, ViTImageProcessorPil

    made = ViTImageProcessorPil(size={"shortest_edge": 30}, do_center_crop=True, crop_size={"height": 24, "width": 24})
    made.save_pretrained(tmp_path / "crop")
    ConvNextImageProcessorPil(size={"shortest_edge": 64}).save_pretrained(tmp_path / "convnext")
    for name, own in (("crop", 24), ("convnext", 64)):
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "vit"}))
        for size in (None, 48):
            pixels = Pixels(read(tmp_path / name, size))
            assert (pixels.height, pixels.width) == (size or own, size or own)
            assert pixels.of(PICTURE).shape == pixels.of(PICTURE.resize((48, 48)), ready=size == 48).shape


def read(folder: Path, size: int | None) -> Any:
    return load_processor(ModelConfig(_target_="torch.nn.Identity", tokenizer=str(folder)), size)


def test_a_model_without_one_gets_imagenets_means(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "skytune")
    found = load_processor(ModelConfig(_target_="torch.nn.Identity"), 32)
    assert list(found.image_mean) == [0.485, 0.456, 0.406] and Pixels(found).of(PICTURE).shape == (3, 32, 32)
    assert "images: scaled to 32 x 32 and by ImageNet's means" in caplog.text
    found.save_pretrained(tmp_path)
    assert np.array_equal(Pixels(read_processor(str(tmp_path))).of(PICTURE), Pixels(found).of(PICTURE))


@pytest.mark.parametrize(
    "content", ["{", '{"image_processor_type": "Nothing"}', '{"auto_map": {"AutoImageProcessor": "own.Mine"}}']
)
def test_a_processor_that_cannot_be_used_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(UserError, match=r"preprocessor_config.json") as refused:
        load_processor(ModelConfig(name=str(tmp_path), tokenizer=str(tmp_path)), None)
    assert "\n" not in str(refused.value)
