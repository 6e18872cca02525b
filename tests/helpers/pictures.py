"""Images for tests: noise, by number."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(seed: int = 0, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    into = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(into, kind, **options)
    return into.getvalue()


def class_folder(root: Path, names: tuple[str, ...] = ("cat", "dog"), rows: int = 6) -> Path:
    for place, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for row in range(rows):
            (root / name / f"{row}.png").write_bytes(encoded(pixels(100 * place + row)))
    return root
