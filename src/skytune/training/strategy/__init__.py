"""The room of strategies: how the training step is spread over processes. The loop does not know which one it has."""

from .choice import build_strategy
from .protocol import Strategy, size

__all__ = ["Strategy", "build_strategy", "size"]
