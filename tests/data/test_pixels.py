from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pictures import encoded, pixels
from PIL import Image

from skytune.config import AugmentConfig, ConfigError, UserError
from skytune.data.batches import Padding, TokenTable
from skytune.data.pixels import Augmentation, Pixels, crop_box, rand_augment, scaled

SIZE = {"height": 16, "width": 24}
ALL = {"crop": 0.3, "flip": 0.5, "rand_ops": 2, "mixup": 0.4, "cutmix": 1.0}


def processor(kind: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, f"{kind}ImageProcessorPil")(**options)


def table(
    augment: dict[str, Any] | None = None, rows: int = 12, seed: int = 5, with_processor: Any = None
) -> TokenTable:
    made = Pixels(with_processor or processor("ViT", size=SIZE))
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


@pytest.mark.parametrize("augment", [None, {"crop": 0.3, "flip": 0.5, "rand_ops": 2}, {"flip": 0.5}])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViT", {"size": SIZE}),
        ("ViT", {"size": SIZE, "do_normalize": False}),
        ("ViT", {"size": SIZE, "do_rescale": False, "do_normalize": False}),
        ("ViT", {"size": SIZE, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}),
        ("EfficientNet", {"size": SIZE}),
        ("EfficientNet", {"size": SIZE, "rescale_offset": True, "include_top": False}),
        ("CLIP", {"size": {"shortest_edge": 20}, "crop_size": {"height": 18, "width": 18}}),
        ("CLIP", {"size": {"shortest_edge": 12}, "crop_size": {"height": 18, "width": 18}}),
        ("ConvNext", {"size": {"shortest_edge": 20}}),
        ("Bit", {"size": {"shortest_edge": 20}, "crop_size": SIZE}),
        ("Beit", {"size": SIZE, "do_center_crop": False}),
    ],
)
def test_shades_become_the_processors_own_numbers_to_the_bit(
    kind: str, options: dict[str, Any], augment: dict[str, Any] | None
) -> None:
    found = table(augment, with_processor=processor(kind, **options))
    images, rows = found.images, np.arange(12)
    assert images is not None and images.pixels.shades is not None
    for epoch in (None, 3):
        (raw, _), expected = images.batch(rows, epoch, raw=True), found.batch(rows, epoch=epoch)["pixel_values"]
        assert raw.dtype == np.uint8 and raw.shape == expected.shape
        assert torch.equal(scaled(torch.from_numpy(raw), torch.from_numpy(images.pixels.shades)), expected)


def flipped() -> Any:
    """Colours change places."""
    return processor("MobileViT", size=SIZE, do_center_crop=False)


def own_brightness() -> Any:
    """Numbers depend on the whole image."""
    found = processor("ViT", size=SIZE)
    found.normalize = lambda image, mean, std: (image - image.mean()) / (1 + image.std())
    return found


def own_scaling() -> Any:
    """It says that it does not scale, and does."""
    found = processor("ViT", size=SIZE, do_rescale=False, do_normalize=False)
    resize = found.resize
    found.resize = lambda image, **options: resize(image, **options) / np.float32(255)
    return found


@pytest.mark.parametrize("odd", [flipped, own_brightness, own_scaling])
def test_numbers_that_are_no_function_of_the_shade_are_made_by_the_processor(odd: Any) -> None:
    found = table({"crop": 0.3, "flip": 0.5}, with_processor=odd())
    assert found.images is not None and found.images.pixels.shades is None
    batches = [found.images.batch(np.arange(12), 1, raw)[0] for raw in (True, False)]
    assert batches[0].dtype == np.float32 and np.array_equal(*batches)


def test_mixed_images_are_numbers_in_every_epoch() -> None:
    """So that a step's buffers, filled before the first epoch, are of their kind."""
    found = table({"mixup": 0.4, "cutmix": 1.0})
    assert found.images is not None
    for epoch in (None, 0, 1):
        raw, plain = (found.images.batch(np.arange(12), epoch, raw) for raw in (True, False))
        assert raw[0].dtype == np.float32 and np.array_equal(raw[0], plain[0])
        assert raw[1] is plain[1] is None if epoch is None else np.array_equal(raw[1], plain[1])


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


@pytest.mark.parametrize(("resample", "name"), [(2, "BILINEAR"), (0, "NEAREST"), (3, "BICUBIC")])
def test_a_crop_is_scaled_with_the_processors_own_filter(resample: int, name: str) -> None:
    assert Pixels(processor("ViT", size=SIZE, resample=resample)).filter is Image.Resampling[name]


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
    with pytest.raises(UserError, match=r"different sizes, so that no batch .* data.image_size=224"):
        Pixels(processor("ViT", do_resize=False))


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
