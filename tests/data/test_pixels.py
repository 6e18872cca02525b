from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pictures import encoded, pixels
from PIL import Image

from skytune.config import AugmentConfig, ConfigError, UserError
from skytune.data.batches import Padding, TokenTable
from skytune.data.pixels import Augmentation, Pixels, crop_box, rand_augment

ALL = {"crop": 0.3, "flip": 0.5, "rand_ops": 2, "mixup": 0.4, "cutmix": 1.0}


def table(augment: dict[str, Any] | None = None, rows: int = 12, seed: int = 5) -> TokenTable:
    from transformers import ViTImageProcessorPil

    made = Pixels(ViTImageProcessorPil(size={"height": 16, "width": 24}))
    contents = pa.array([encoded(pixels(row, (20 + row, 30))) for row in range(rows)], pa.large_binary())
    found = TokenTable(pa.table({"image": contents, "labels": np.arange(rows) % 3}), Padding(pixels=made))
    if augment is not None:
        assert found.images is not None
        found.images.augmentation = Augmentation(AugmentConfig(**augment), seed, 3)
    return found


def test_images_are_what_the_processor_makes_of_them() -> None:
    found = table(ALL)
    batch = found.batch(np.array([3, 0]))
    assert batch["pixel_values"].shape == (2, 3, 16, 24) and batch["labels"].tolist() == [0, 0]
    assert found.images is not None
    plain = found.images.pixels.processor(Image.fromarray(pixels(3, (23, 30))), return_tensors="np")["pixel_values"]
    assert np.array_equal(batch["pixel_values"][0].numpy(), plain[0])


def test_what_is_drawn_depends_on_seed_epoch_and_row_alone() -> None:
    rows = np.arange(12)
    whole = table(ALL).batch(rows, epoch=1)
    assert np.allclose(whole["labels"].sum(1), 1) and whole["labels"].shape == (12, 3)
    parts = [table(ALL).batch(rows[::-1][[place]], epoch=1) for place in range(12)]
    for name in ("pixel_values", "labels"):
        assert np.array_equal(whole[name].numpy(), np.concatenate([part[name].numpy() for part in parts])[::-1])
    for other in (table(ALL).batch(rows, epoch=2), table(ALL, seed=6).batch(rows, epoch=1), table().batch(rows)):
        assert not np.allclose(whole["pixel_values"], other["pixel_values"])


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixed_classes_are_the_shares_of_their_images(kind: str) -> None:
    """Of one colour a class, so that the share can be read off the pixels."""
    found = table({kind: 1.0}, rows=3)
    images = found.images
    assert images is not None
    colours = np.array([0, 100, 200])
    plain = [encoded(np.full((16, 24, 3), colour, np.uint8)) for colour in colours]
    images.column = pa.chunked_array([pa.array(plain, pa.large_binary())])
    seen = set()
    for epoch in range(12):
        batch = found.batch(np.arange(3), epoch=epoch)
        values = (batch["pixel_values"].numpy() * 0.5 + 0.5) * 255
        for value, share in zip(values, batch["labels"].numpy(), strict=True):
            assert value.mean() == pytest.approx(share @ colours, abs=0.1)
            seen.add(round(float(share.max()), 2))
    assert len(seen) > 5


def test_a_crop_lies_inside_and_has_its_share() -> None:
    random = np.random.default_rng(0)
    for size in [(30, 20), (1, 1), (500, 3)]:
        for _ in range(200):
            left, top, right, bottom = crop_box(size, 0.3, random)
            assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
            if size == (30, 20):
                assert (right - left) * (bottom - top) > 0.25 * 600


@pytest.mark.parametrize("magnitude", [0, 10])
def test_every_change_gives_an_image_of_the_same_size(magnitude: int) -> None:
    image, random = Image.fromarray(pixels()), np.random.default_rng(0)
    found = [rand_augment(image, magnitude, random) for _ in range(200)]
    assert {(changed.size, changed.mode) for changed in found} == {((30, 20), "RGB")}
    changed = sum(not np.array_equal(np.asarray(each), np.asarray(image)) for each in found)
    assert changed > 100 if magnitude else changed < 80


def test_a_processor_that_keeps_sizes_is_refused_with_the_way_out() -> None:
    from transformers import ViTImageProcessorPil

    with pytest.raises(UserError, match=r"different sizes, so that no batch .* data.image_size=224"):
        Pixels(ViTImageProcessorPil(do_resize=False))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": 0}, "augment.crop=0: must be above 0 and at most 1"),
        ({"flip": 1.5}, "augment.flip=1.5: must be at most 1"),
        ({"rand_magnitude": 11}, "augment.rand_magnitude=11: must be at most 10"),
        ({"mixup": -1}, "augment.mixup=-1: must not be negative"),
    ],
)
def test_impossible_augmentations_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**values)


def test_a_damaged_image_is_named_with_its_row(tmp_path: Path) -> None:
    found = table(rows=3)
    assert found.images is not None
    data = [encoded(pixels(), "JPEG"), encoded(pixels(), "JPEG")[:300], encoded(pixels())]
    found.images.column = pa.chunked_array([pa.array(data, pa.large_binary())])
    with pytest.raises(UserError, match="row 2: its image cannot be read"):
        found.batch(np.arange(3))
