"""The room of data: rows from packages, files, the Hub or a function, honest splits, tokens ready for training.

Importing it costs little: torch, transformers and datasets are imported where they are used.
"""

from .prepare import Prepared, prepare
from .sources import Source
from .splits import normalize
