"""A trained model as ONNX: exported by torch itself, and refused where it does not compute what the model does."""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .. import models
from ..common.text import first_line
from ..config import ConfigError, RunConfig, UserError
from ..data.batches import Ragged, TokenTable
from ..distributed.context import join
from ..job import write_json
from ..models.head import own_settings
from ..models.outputs import logits_of
from ..tasks import Scoring, find_task, resolved
from ..tasks.prepared import prepared
from ..training.inputs import fit_columns, open_saved, padding_by, targets_of
from ..training.outputs import taken
from ..training.padding_check import check_padding
from ..training.prediction import predict

WITHIN = 1e-3
"""Largest difference of a logit that is taken for rounding."""

FILES = {False: "model.onnx", True: "model.int8.onnx"}


class OnnxNetwork(torch.nn.Module):
    """An ONNX file that is called like the model that it was made of."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.names = [one.name for one in self.session.get_inputs()]

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Return `logits`."""
        given = {name: inputs[name].numpy() for name in self.names}
        return SimpleNamespace(logits=torch.from_numpy(self.session.run(["logits"], given)[0]))


class _Logits(torch.nn.Module):
    """A model that takes its inputs by place and returns nothing but logits."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(logits_of(self.model(**dict(zip(self.names, inputs, strict=True)))))


def export_onnx(config: RunConfig) -> list[str]:
    """Write `config.checkpoint` as ONNX, with its tokenizer, and say what was found.

    The folder appears once all of it is there and was checked on the rows of the test split.

    Args:
        config: `validated`.

    Returns:
        Lines for a person.

    Raises:
        UserError: the model cannot be exported, or answers otherwise then.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"export.format=onnx needs {error.name}: `pip install -c constraints.txt -e '.[onnx]'`"
        ) from error
    checkpoint = str(config.checkpoint.path)
    saved = models.saved_model(checkpoint)
    if saved.auto == "AutoModelForCausalLM":
        raise ConfigError(f"pipeline=export: {checkpoint} is a language model; vLLM serves those as they are")
    target = Path(config.export.output or f"{checkpoint.rstrip('/')}-onnx").expanduser().absolute()
    if target.exists() and not (target / FILES[False]).is_file():
        raise ConfigError(f"export.output={target}: is there already, and no export of a model")
    splits = prepared(config, config.seed, saved.labels)
    config = resolved(config, splits.test.features)
    task, tokenizer = find_task(config.task), splits.tokenizer
    if not hasattr(tokenizer, "pad_token_id"):
        raise ConfigError(f"pipeline=export: models of texts are exported; task={task.name} reads something else")
    network = open_saved(saved.folder, saved.target, tokenizer)
    head = task.model(config, splits.labels, None)
    scoring = Scoring.of(config.eval, splits.labels, settings={**head.settings, **own_settings(network)})
    collect = task.collector(head)
    table = TokenTable(splits.test.with_format("arrow")[:], padding_by(tokenizer))
    fit_columns(network, {"test": table})
    table.one_length = bool(check_padding(network, {"test": table}, collect))

    def tested(network: torch.nn.Module, name: str) -> tuple[Ragged, dict[str, Any], str]:
        """Return logits and scores on the test split, and the line that says so."""
        world = join(config, 1)[1]
        size, limit = config.eval.batch_size, config.limit_eval_batches
        rows, found = predict(network, table, world, collect, batch_size=size, limit=limit, multiple=1)
        scores = dict(task.score(found, taken(targets_of(table, "test"), rows), scoring).as_dict()["metrics"])
        told = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items() if value is not None)
        return found, scores, f"  {name:16} {told}"

    wanted, _, line = tested(network, "model")
    numbers: dict[str, Any] = {"rows": len(wanted), "within": WITHIN}
    lines = [f"exported, and checked on {len(wanted):,} rows of the test split: {target}", line]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as beside:
        part = Path(beside, "whole")
        part.mkdir()
        if hasattr(network, "config"):
            network.config.save_pretrained(part)
        tokenizer.save_pretrained(part)
        _export(network, table, part / FILES[False])
        for small in (False, True) if config.export.int8 else (False,):
            file = part / FILES[small]
            if small:
                _quantize(part / FILES[False], file)
            found, scores, line = tested(OnnxNetwork(file), file.name)
            apart, size = float(np.abs(found.values - wanted.values).max(initial=0)), file.stat().st_size
            if not small and not apart <= WITHIN:  # NaN neither
                raise UserError(
                    f"pipeline=export: the exported model's logits differ by {apart:.2g} on {len(wanted):,} rows, "
                    f"more than {WITHIN:g}: nothing was written"
                )
            numbers[file.name] = {"largest_difference": apart, "bytes": size, "test": scores}
            lines.append(f"{line} ({size / 1e6:.1f} MB, largest difference of a logit {apart:.2g})")
        write_json(part / "export.json", numbers)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    return lines


def _export(network: torch.nn.Module, table: TokenTable, file: Path) -> None:
    """Write a model whose numbers of rows and tokens are variables."""
    rows = np.unique(np.argsort(table.lengths, kind="stable")[[0, -1]])
    batch = {name: tensor for name, tensor in table.batch(rows).items() if name != "labels"}
    inputs = tuple(tensor if len(tensor) > 1 else tensor.repeat(2, 1) for tensor in batch.values())
    sizes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    try:
        with _silently():
            torch.onnx.export(
                _Logits(network, list(batch)).eval(),
                inputs,
                str(file),
                dynamo=True,
                dynamic_shapes=((sizes,) * len(inputs),),
                input_names=list(batch),
                output_names=["logits"],
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever a model's forward does that cannot be traced
        raise UserError(f"pipeline=export: torch cannot export this network: {first_line(error)}") from error


def _quantize(file: Path, into: Path) -> None:
    """Write the model with matrices of 8-bit integers; what is multiplied with them is rounded as it comes."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _silently():
        quantize_dynamic(str(file), str(into), weight_type=QuantType.QInt8)


@contextmanager
def _silently() -> Iterator[None]:
    """Leave out what exporters tell of their ways, for a while."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
