"""One class an image."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..common.text import first_line
from ..config import IMAGES, METRICS, DataConfig, ModelConfig, RunConfig, UserError
from ..data.batches import Ragged, TokenTable
from ..data.columns import Column, Columns
from ..data.images import arrange, image_column, image_inputs, thumbnail
from ..data.rows import Rows
from ..data.targets import ClassTargets, Encoded
from ..data.tokens import with_labels
from ..models import PROCESSOR, load_processor
from ..models.head import Head
from . import text_classification as texts
from .losses import class_loss
from .task import Collected, Scored, Scoring


@dataclass(frozen=True)
class ImageTargets(ClassTargets):
    """One class an image."""

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`: the images' bytes are decoded by the workers."""
        import datasets

        table, features, _ = image_inputs(rows, tokenizer, limit)
        return with_labels(table, features, encoded.values, datasets.ClassLabel(names=self.names)), 0


def columns(config: DataConfig) -> Columns:
    """Return the columns of an image and its class."""
    return image_column(config), Column("label", config.label, "data.label", kind="label", needed=False)


def opens(config: DataConfig, model: ModelConfig) -> tuple[Any, None]:
    """Return the model's image processor."""
    return load_processor(model, config.image_size), None


def fits(features: Mapping[str, Any]) -> bool:
    """Whether rows are images of a class."""
    return type(features.get("labels")).__name__ == "ClassLabel" and "image" in features


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return the head of one class an image, with the loss that `loss.*` and mixed classes ask for."""
    loss = class_loss(config.loss, names, train, shares=config.augment.mixes)
    return replace(texts.model(config, names, None), auto="AutoModelForImageClassification", loss=loss, ready=ready)


def ready(model: Any, tables: Mapping[str, TokenTable]) -> None:
    """See that the network takes images of this size.

    Raises:
        UserError: it does not.
    """
    import torch

    pixels, training = next(iter(tables.values())).batch(np.zeros(1, np.int64))["pixel_values"], model.training
    try:
        with torch.no_grad():
            model.eval()(pixel_values=pixels)
    except (ValueError, RuntimeError, TypeError) as error:
        size = " x ".join(map(str, pixels.shape[1:]))
        raise UserError(
            f"{type(model).__name__} does not compute images of {size} (data.image_size=null takes the size that its "
            f"{PROCESSOR} says): {first_line(error)}"
        ) from error
    finally:
        model.train(training)


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return every metric; with rows to show, also what there is of texts, the mistakes as images."""
    scored = texts.score(collected, targets, replace(scoring, mistakes=24))
    for section in scored.sections:
        section.values["images"] = True
        for miss in section.values["mistakes"]:
            miss["image"] = thumbnail(scoring.shown.row(miss["row"])["image"])  # type: ignore[union-attr]
    return replace(scored, headline={**scored.headline, "top_5": "share"})


TASK = replace(
    texts.TASK,
    name="image-classification",
    pipeline="image-classification",
    metrics=(*METRICS, *IMAGES),
    augments=True,
    fits=fits,
    columns=columns,
    arrange=arrange,
    opens=opens,
    inputs=image_inputs,
    targets=ImageTargets.find,
    model=model,
    score=score,
)
