"""Images to a model's `pixel_values`, in the workers: decoded, changed at random where they are learned, and scaled by
the model's own processor. What is drawn depends on (seed, epoch, row) alone, as the order of rows does."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import AugmentConfig, UserError
from .images import decode, decode_part, problem_of

if TYPE_CHECKING:
    import torch

FILL = (128, 128, 128)
"""Colour of what a turned or shifted image leaves free."""

SCALING = ("do_rescale", "do_normalize", "include_top")
"""Whether processors scale what they have cut out; `include_top` divides once more (EfficientNet)."""


@dataclass(frozen=True)
class Augmentation:
    """How images of the train split are changed."""

    config: AugmentConfig
    seed: int
    classes: int

    def random(self, epoch: int, row: int, use: int) -> np.random.Generator:
        """Return the random numbers of one row in one epoch, for one use."""
        return np.random.Generator(np.random.PCG64([self.seed, epoch, row, use]))


class Pixels:
    """How images become numbers.

    Args:
        processor: a model's image processor of transformers, one that computes with Pillow.

    Raises:
        UserError: it makes arrays of different sizes of different images.
    """

    def __init__(self, processor: Any) -> None:
        from PIL import Image

        self.processor = processor
        chosen = getattr(processor, "resample", None)
        self.filter = Image.Resampling(chosen) if isinstance(chosen, int) else Image.Resampling.BICUBIC
        """With which the processor changes an image's size; a crop at random does it alike."""
        shapes = {self.of(Image.new("RGB", size)).shape for size in ((320, 200), (200, 320))}
        if len(shapes) > 1:
            raise UserError(
                f"{type(processor).__name__} makes arrays of different sizes of images of different sizes, so that no "
                "batch can be made of them: data.image_size=224 gives all one size"
            )
        self.shape = shapes.pop()
        _, self.height, self.width = self.shape
        self.shades = self._shades()
        """The number of every shade by channel, float32 [channels, 256]; None where more than the shade has a say in
        it."""

    def images(self, column: Any, labels: np.ndarray | None) -> "Images":
        """Return the images of a split; see there."""
        return Images(column, self, labels)

    def of(self, image: Any, ready: bool = False, raw: bool = False) -> np.ndarray:
        """Return an image's numbers, float32 [channels, height, width].

        Args:
            ready: it has the model's size.
            raw: return its shades, uint8, of which `scaled` makes the numbers; only where there are `shades`.
        """
        if ready and raw:
            return np.asarray(image).transpose(2, 0, 1)
        options = {"do_resize": False, "do_center_crop": False} if ready else {}
        options |= {name: False for name in SCALING if raw and hasattr(self.processor, name)}
        found = self.processor(images=[image], return_tensors="np", **options)["pixel_values"][0]
        return np.asarray(found, dtype=None if raw else np.float32)

    def _shades(self) -> np.ndarray | None:
        """Return `shades`: those of a ramp, where they give the processor's own numbers, to the bit, of images that are
        bright, dark, and of all shades."""
        import torch
        from PIL import Image

        ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB")
        random = np.random.default_rng(0)
        try:
            shades = self.of(ramp, ready=True).reshape(-1, 256)
            for shape, least, most in (((320, 200), 0, 256), ((200, 320), 20, 60), ((90, 90), 180, 250)):
                image = Image.fromarray(random.integers(least, most, (*shape, 3), dtype=np.uint8))
                for given, ready in ((image, False), (image.resize((self.width, self.height)), True)):
                    raw = self.of(given, ready, raw=True)
                    found = scaled(torch.tensor(raw[None]), torch.from_numpy(shades))[0].numpy()
                    if raw.dtype != np.uint8 or not np.array_equal(found, self.of(given, ready)):
                        return None
        except Exception:  # it computes something else than a photograph's numbers
            return None
        return shades


class Images:
    """The images of a split.

    Args:
        column: their files' contents (Arrow, binary).
        pixels: how they become numbers.
        labels: int64 [rows], their classes; None where there are none.
    """

    def __init__(self, column: Any, pixels: Pixels, labels: np.ndarray | None) -> None:
        self.column, self.pixels, self.labels = column, pixels, labels
        self.augmentation: Augmentation | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def batch(self, rows: np.ndarray, epoch: int | None, raw: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the images of rows, float32 [rows, channels, height, width], and where they are mixed the shares of
        the classes, float32 [rows, classes].

        Args:
            epoch: the pass over the train split in which they are learned; None: they are as they are.
            raw: return shades, uint8, for `scaled` to make numbers of, a quarter of the bytes; where the processor
                has such (`Pixels.shades`) and images of the split are not mixed.

        Raises:
            UserError: an image cannot be read.
        """
        change = self.augmentation if epoch is not None else None
        mixes = self.augmentation is not None and self.augmentation.config.mixes
        raw = raw and self.pixels.shades is not None and not mixes
        values = np.empty((len(rows), *self.pixels.shape), np.uint8 if raw else np.float32)

        def fill(place: int) -> Any:
            values[place], share = self._one(int(rows[place]), change, epoch or 0, raw)
            return share

        shares = self._each(fill, len(rows))
        return values, np.stack(shares) if mixes and change is not None else None

    def _each(self, function: Callable[[int], Any], count: int) -> list[Any]:
        """Call a function for 0 ... `count` - 1: in a loader process one after the other, else on all cores of this
        process."""
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None or count == 1:
            return [function(place) for place in range(count)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="images")
        return list(self._pool.map(function, range(count)))

    def _one(self, row: int, change: Augmentation | None, epoch: int, raw: bool) -> tuple[np.ndarray, Any]:
        if change is None:
            return self.pixels.of(self._read(row, decode), raw=raw), None
        values = self._changed(row, change, epoch, raw)
        return mixed(self, row, values, change, epoch) if change.config.mixes else (values, None)

    def _read(self, row: int, read: Callable[[Any], Any]) -> Any:
        data = self.column[row].as_buffer()
        try:
            return read(data)
        except Exception as error:  # it was looked at before: the file of the split is damaged
            raise UserError(f"row {row + 1}: its image {problem_of(bytes(data)) or error}") from error

    def _changed(self, row: int, change: Augmentation, epoch: int, raw: bool = False) -> np.ndarray:
        """Return the numbers (`raw`: the shades) of an image after crop, flip and RandAugment."""
        from PIL import Image

        config, random = change.config, change.random(epoch, row, 0)
        if config.crop < 1:
            size = (self.pixels.width, self.pixels.height)

            def cropped(data: Any) -> Any:
                image, box = decode_part(data, lambda whole: crop_box(whole, config.crop, random), *size)
                return image.resize(size, self.pixels.filter, box=box)

            image = self._read(row, cropped)
        else:
            image = self._read(row, decode)
        if random.random() < config.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for _ in range(config.rand_ops):
            image = rand_augment(image, config.rand_magnitude, random)
        return self.pixels.of(image, config.crop < 1, raw)


def scaled(values: "torch.Tensor", shades: "torch.Tensor") -> "torch.Tensor":
    """Return the numbers that a model takes, float32 [rows, channels, height, width], of shades, uint8 of that shape.

    They are looked up, not computed: so they are the processor's own on every device.

    Args:
        shades: `Pixels.shades`, on the same device.
    """
    import torch

    channels = torch.arange(len(shades), device=values.device)[:, None, None]
    return shades[channels, values.long()]


def cores() -> int:
    """Return the CPU cores of this process: those of the machine over the training processes on it."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def crop_box(size: tuple[int, int], least: float, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Return the corners of a part of an image: at least this share of its area, sides of 3:4 to 4:3 (Szegedy et al.
    2015); where ten tries find none, the whole image."""
    width, height = size
    for _ in range(10):
        area = width * height * random.uniform(least, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return x, y, x + w, y + h
    return 0, 0, width, height


def rand_augment(image: Any, magnitude: int, random: np.random.Generator) -> Any:
    """Return an image after one of 14 changes of this strength (0 to 10), in a random direction."""
    from PIL import Image, ImageEnhance, ImageOps

    strength = magnitude / 10
    signed = strength * (1 if random.random() < 0.5 else -1)

    def affine(*matrix: float) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=FILL)

    def enhanced(kind: Any) -> Any:
        return kind(image).enhance(1 + 0.9 * signed)

    width, height = image.size
    changes: list[Callable[[], Any]] = [
        lambda: image,
        lambda: ImageOps.autocontrast(image),
        lambda: ImageOps.equalize(image),
        lambda: image.rotate(30 * signed, Image.Resampling.BILINEAR, fillcolor=FILL),
        lambda: ImageOps.solarize(image, round(256 * (1 - strength))),
        lambda: ImageOps.posterize(image, 8 - round(4 * strength)),
        lambda: enhanced(ImageEnhance.Color),
        lambda: enhanced(ImageEnhance.Contrast),
        lambda: enhanced(ImageEnhance.Brightness),
        lambda: enhanced(ImageEnhance.Sharpness),
        lambda: affine(1, 0.3 * signed, 0, 0, 1, 0),
        lambda: affine(1, 0, 0, 0.3 * signed, 1, 0),
        lambda: affine(1, 0, 0.45 * signed * width, 0, 1, 0),
        lambda: affine(1, 0, 0, 0, 1, 0.45 * signed * height),
    ]
    return changes[int(random.integers(len(changes)))]()


def mixed(images: Images, row: int, values: np.ndarray, change: Augmentation, epoch: int) -> tuple[np.ndarray, Any]:
    """Return a row's image mixed with that of another row, drawn from all, and the shares of the classes."""
    assert images.labels is not None
    config, random = change.config, change.random(epoch, row, 1)
    other = int(random.integers(len(images.labels)))
    cut = config.cutmix > 0 and (not config.mixup or random.random() < 0.5)
    alpha = config.cutmix if cut else config.mixup
    share = float(random.beta(alpha, alpha))
    second = images._changed(other, change, epoch)
    if cut:
        _, height, width = values.shape
        h, w = (round(side * np.sqrt(1 - share)) for side in (height, width))
        y, x = int(random.integers(height - h + 1)), int(random.integers(width - w + 1))
        values = values.copy()
        values[:, y : y + h, x : x + w] = second[:, y : y + h, x : x + w]
        share = 1 - h * w / (height * width)
    else:
        values = (share * values + (1 - share) * second).astype(np.float32)
    shares = np.zeros(change.classes, dtype=np.float32)
    shares[images.labels[row]] += share
    shares[images.labels[other]] += 1 - share
    return values, shares
