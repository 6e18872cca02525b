"""`export`: a trained model in another form."""

from dataclasses import dataclass
from enum import Enum


class ExportFormat(str, Enum):
    """What a model is exported as."""

    onnx = "onnx"


@dataclass(kw_only=True)
class ExportConfig:
    """What `pipeline=export` writes of `checkpoint=PATH`; it is checked on the test split of `data`."""

    format: ExportFormat = ExportFormat.onnx
    """`onnx`: by torch's own exporter, any number of rows and tokens; an export whose logits differ from the model's by
    more than 0.001 on any row of the test split is refused."""

    output: str | None = None
    """The folder to write. Empty: `PATH-onnx`."""

    int8: bool = False
    """Write `model.int8.onnx` too, with matrices of 8-bit integers (dynamic quantization): a quarter of the size; its
    scores on the test split are shown beside the model's."""
