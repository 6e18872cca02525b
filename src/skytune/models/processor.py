"""The image processor of a model: how images are scaled to what it was trained on. Always transformers' own of the kind
that computes with Pillow: torchvision is not needed, and the numbers are the same wherever it is installed."""

import importlib
import logging
from pathlib import Path
from typing import Any

from ..common.text import first_line
from ..config import ModelConfig, UserError
from .quiet import quiet
from .source import TOKENIZER, fetch

log = logging.getLogger(__name__)

PROCESSOR = "preprocessor_config.json"
"""The file that says how images are scaled."""

SIZE = 224
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def load_processor(config: ModelConfig, size: int | None) -> Any:
    """Return the image processor of a model; one with ImageNet's means where it brings none.

    Args:
        config: the model; `tokenizer`, a folder with a `preprocessor_config.json`, goes before `name`.
        size: pixels of both sides of what it makes; None: as its files say.

    Raises:
        UserError: there is one that cannot be used.
        NotReachable: it is on the Hub, which does not answer.
    """
    folder = None
    if config.tokenizer:
        folder = fetch(config.tokenizer, weights=False, key=TOKENIZER)
    elif not config._target_:
        folder = fetch(config.name, config.revision, weights=False)
    if folder is not None and (Path(folder) / PROCESSOR).is_file():
        return _sized(read_processor(folder), size)
    from transformers import ViTImageProcessorPil

    pixels = size or _own_size(folder) or SIZE
    log.info("images: scaled to %d x %d and by ImageNet's means: the model brings no %s", pixels, pixels, PROCESSOR)
    return ViTImageProcessorPil(size={"height": pixels, "width": pixels}, **IMAGENET)


def read_processor(folder: str) -> Any:
    """Return the image processor in a local folder.

    Raises:
        UserError: it cannot be used.
    """
    try:
        with quiet("transformers", "huggingface_hub"):
            # From `transformers` itself this class asks for torchvision.
            auto = importlib.import_module("transformers.models.auto.image_processing_auto").AutoImageProcessor
            return auto.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its files hold
        raise UserError(f"no usable image processor in {folder} ({PROCESSOR}): {first_line(error)}") from error


def _own_size(folder: str | None) -> int | None:
    """Return the size of the images that a model's configuration names."""
    if folder is None:
        return None
    from transformers import AutoConfig

    with quiet("transformers"):
        found = getattr(AutoConfig.from_pretrained(folder, local_files_only=True), "image_size", None)
    return found if isinstance(found, int) else None


def _sized(processor: Any, size: int | None) -> Any:
    """Return the processor, changed so that what it makes has this size."""
    if size is not None:
        square, own = {"height": size, "width": size}, processor.size
        edge = own.get("shortest_edge") if isinstance(own, dict) else getattr(own, "shortest_edge", None)
        crops = getattr(processor, "do_center_crop", None)
        # ConvNeXt's processor cuts the middle out itself, by a share.
        processor.size = {"shortest_edge": size} if edge and (crops or hasattr(processor, "crop_pct")) else square
        if crops:
            processor.crop_size = square
    return processor
