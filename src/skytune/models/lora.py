"""LoRA adapters by peft: put into a model, stored as the folder that peft reads, continued, merged into their base.

    adapter_config.json         peft's own description; names the base
    adapter_model.safetensors   the adapter's weights, and the head's, which is trained whole
    skytune_adapter.json        the model's configuration (its classes), and the hash of the base's weights

peft's layers are put into the model itself: it stays the class that it was, and whoever trains, shards, checkpoints or
averages it finds plain parameters, most of them frozen. A folder of peft's is data: its values are checked, no code and
no pickle in it is run.
"""

import inspect
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.json import load_json
from ..common.text import first_line
from ..config import ConfigError, LoraConfig, ModelConfig, UserError
from ..config.installing import needing
from ..job import write_json
from .formats import ADAPTER, ORIGIN, original_config
from .hashing import hash_file, hash_values
from .quantized import BITS, import_bitsandbytes, is_quantized, plain, quantize, restore
from .quiet import quiet
from .source import fetch, load_weights

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

WEIGHTS = "adapter_model.safetensors"

NAME = "default"
"""What peft calls an adapter that has no name."""

PREFIX = "base_model.model."
"""What peft puts before the names of a model's parameters in its files."""

ATTRIBUTE = "skytune_adapter"

UNUSUAL = (
    "trainable_token_indices",
    "layer_replication",
    "target_parameters",
    "megatron_config",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
)
"""What an adapter's configuration may ask for and is not done here."""


@dataclass
class Adapter:
    """What a model with an adapter remembers of it."""

    base: str
    """The base as the configuration names it."""

    revision: str | None
    """Its commit on the Hub."""

    weights: str
    """Hash of the base's weights; empty where they were drawn at random."""

    whole: list[str]
    """Modules that are trained whole: the head, and what no file of weights held."""

    bits: int | None = None
    """In how many bits the base's weights are kept, where they are quantized."""


def has_adapter(model: Any) -> bool:
    """Whether a model is trained through an adapter."""
    return hasattr(model, ATTRIBUTE)


def trained_state(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Return a model's tensors by name as its checkpoints hold them: all of them; of a model with an adapter all but
    the base's weights, which never change."""
    state = model.state_dict()
    if not has_adapter(model):
        return state
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    # Beside a quantized weight lie its constants: WEIGHT.absmax, WEIGHT.quant_map, ...
    owner = {name: name.partition(".weight.")[0] + ".weight" if ".weight." in name else name for name in state}
    return {name: tensor for name, tensor in state.items() if owner[name] not in frozen}


def attach(model: Any, config: ModelConfig, folder: str, new: set[str]) -> None:
    """Put a LoRA adapter into a model, in place, and freeze everything else but the head.

    Args:
        model: a model of transformers, on the CPU; new weights are drawn from torch's random numbers.
        config: the model and its adapter.
        folder: where the base's files lie.
        new: parameters that no file of weights held; they learn, wherever they lie.

    Raises:
        UserError: no layer to adapt, or an adapter that does not belong to this model, by name.
    """
    peft, lora = _peft(), config.lora
    given = _read(Path(lora.adapter).expanduser()) if lora.adapter else None
    weights = weights_hash(Path(folder)) if config.pretrained else ""
    whole = _outermost(_heads(model) | {name.rpartition(".")[0] for name in new})
    bits = lora.bits or (given.origin.get("bits") if given is not None else None)
    if bits not in (None, BITS):
        raise UserError(f"model.lora.adapter={lora.adapter}: {ORIGIN} names a base of {bits} bits; 4 are known here")
    if given is None:
        settings = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha if lora.alpha is not None else 2 * int(lora.rank or 0),
            lora_dropout=lora.dropout,
            target_modules=lora.targets,
            exclude_modules=_inside(model, whole) or None,
            use_rslora=lora.rslora,
            use_dora=lora.dora,
        )
    else:
        given.check_same_base(config, weights)
        settings = given.settings()
        whole = _outermost({*whole, *given.whole(model)})
    if bits:
        quantize(model, whole)
    try:
        with quiet("transformers"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it adapts itself to (GPT-2's transposed layers) is no news
            peft.inject_adapter_in_model(settings, model, NAME)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        where = f"model.lora.targets={lora.targets}" if given is None else given.named
        if "arget modules" not in str(error):  # values of a file, which peft does not check
            raise UserError(f"{where}: peft cannot make it: {error}") from error
        found = ", ".join(sorted(_linear(model))) or "none"
        raise ConfigError(f"{where}: {type(model).__name__} has no such layer that can be adapted: {found}") from error
    _check_untied(model)
    for name in whole:
        model.get_submodule(name).requires_grad_(True)
    place = Path(config.name).expanduser()
    setattr(
        model,
        ATTRIBUTE,
        Adapter(str(place.absolute() if place.is_dir() else config.name), config.revision, weights, whole, bits),
    )
    if given is not None:
        given.load_into(model)


def write_adapter(model: Any, folder: Path) -> None:
    """Write a model's adapter as `PeftModel.from_pretrained` reads it."""
    from safetensors.torch import save_file

    known: Adapter = getattr(model, ATTRIBUTE)
    settings = model.peft_config[NAME]
    tensors = {PREFIX + name: tensor.detach().to("cpu", copy=True) for name, tensor in _stored(model).items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    values = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.to_dict().items()}
    values |= {
        "base_model_name_or_path": known.base,
        "revision": known.revision,
        "modules_to_save": known.whole or None,
        "inference_mode": True,
        "task_type": next((kind for part, kind in TASKS.items() if part in type(model).__name__), None),
    }
    write_json(folder / ADAPTER, values)
    config = model.config.to_diff_dict() | {"architectures": [type(model).__name__]}
    bits = {"bits": known.bits} if known.bits else {}
    write_json(folder / ORIGIN, {"base_weights": known.weights, "config": config, **bits})


TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForQuestionAnswering": "QUESTION_ANS",
}
"""peft's name of a task by a part of the model's class."""


def merge(model: Any) -> Any:
    """Return a model with its adapter added to the base's weights, in place: a plain model, in float32 where its base
    was quantized."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    for name, module in adapted:
        layer = module.get_base_layer()
        if is_quantized(layer):  # peft would round the sum to 4 bits
            layer = plain(layer)
            layer.weight.data += module.get_delta_weight(NAME).float()
        else:
            module.merge(safe_merge=True)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer)
    restore(model)
    model.requires_grad_(True)
    for attribute in ("peft_config", ATTRIBUTE):
        delattr(model, attribute)
    return model


def weights_hash(folder: Path) -> str:
    """Return the hash of a folder's weights, whatever their files are called."""
    return hash_values([hash_file(file) for file in sorted(folder.glob("*.safetensors"))])


@dataclass
class _Given:
    """An adapter that lies in a folder."""

    folder: Path
    values: dict[str, Any]
    origin: dict[str, Any]
    tensors: "dict[str, torch.Tensor]"

    @property
    def named(self) -> str:
        return f"model.lora.adapter={self.folder}"

    def check_same_base(self, config: ModelConfig, weights: str) -> None:
        """Refuse a base that the adapter was not trained on: by the hash of its weights where the adapter knows it,
        else by its name."""
        base = str(self.values.get("base_model_name_or_path") or "")
        known = self.origin.get("base_weights")
        if known:
            if weights == known:
                return
            why = f"the weights of model.name={config.name} are others"
        else:
            if Path(base).name.casefold() == Path(config.name).name.casefold():
                return
            why = f"model.name={config.name} is another"
        raise UserError(
            f"{self.named}: was trained on {base or 'a model that it does not name'}, and {why}: give that model, or, "
            f"where the two are the same, write its name into base_model_name_or_path of {ADAPTER}"
        )

    def settings(self) -> Any:
        """Return peft's configuration of it."""
        peft, kind = _peft(), self.values.get("peft_type")
        if kind != "LORA":
            raise UserError(f"{self.named}: is an adapter of the kind {kind}; LoRA alone is continued here")
        unusual = [key for key in UNUSUAL if self.values.get(key)]
        if unusual or self.values.get("bias", "none") != "none":
            raise UserError(f"{self.named}: uses {(unusual or ['bias'])[0]}, which is not done here")
        known = set(inspect.signature(peft.LoraConfig).parameters) - {"peft_type", "task_type", "modules_to_save"}
        try:
            settings = peft.LoraConfig(**{key: value for key, value in self.values.items() if key in known})
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.folder / ADAPTER}: is damaged: {error}") from error
        settings.inference_mode = False
        return settings

    def whole(self, model: Any) -> set[str]:
        """Return the modules that it holds whole."""
        own = {name.rpartition(".")[0] for name in self.tensors if "lora_" not in name}
        names = {name for name, _ in model.named_modules()}
        odd = sorted(own - names)
        if odd:
            raise UserError(f"{self.named}: holds {odd[0]}, which {type(model).__name__} does not have")
        return own

    def load_into(self, model: Any) -> None:
        """Put its weights into a model that has its layers already."""
        from peft import set_peft_model_state_dict

        expected = {name: tuple(tensor.shape) for name, tensor in _stored(model).items()}
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise UserError(f"{self.named}: {self._difference(model, name, expected.get(name), found.get(name))}")
        plain = {name: tensor for name, tensor in self.tensors.items() if "lora_" not in name}
        model.load_state_dict(plain, strict=False)
        set_peft_model_state_dict(model, {name: tensor for name, tensor in self.tensors.items() if name not in plain})

    @staticmethod
    def _difference(model: Any, name: str, expected: tuple[int, ...] | None, found: tuple[int, ...] | None) -> str:
        kind, module = type(model).__name__, name.rpartition(".")[0]
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        try:
            end = any(model.get_submodule(module) is part for part in ends)
        except AttributeError:
            end = False
        if expected and found and end:
            return (
                f"was trained with a vocabulary of {found[0]:,} tokens ({name}), the model has {expected[0]:,}: a "
                "vocabulary that was resized must be merged with its own base first"
            )
        if expected and found:
            return f"does not fit {kind}: {name} is {list(found)} there, {list(expected)} here"
        return f"does not fit {kind}: {name} is only {'in the model' if expected else 'in the adapter'}"


def check_adapter(folder: Path) -> None:
    """See that a folder holds an adapter, without reading its weights.

    Raises:
        UserError: it does not.
    """
    if not (folder / ADAPTER).is_file():
        raise UserError(f"model.lora.adapter={folder}: this folder holds no adapter ({ADAPTER})")
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"model.lora.adapter={folder}: holds no {WEIGHTS} (other formats can run code when read)")


def _read(folder: Path) -> _Given:
    """Return the adapter in a folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_adapter(folder)
    try:
        values = load_json((folder / ADAPTER).read_bytes(), dict)
        origin = load_json((folder / ORIGIN).read_bytes(), dict) if (folder / ORIGIN).is_file() else {}
        tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"model.lora.adapter={folder}: is damaged: {error}") from error
    return _Given(folder, values, origin, tensors)


def _peft() -> Any:
    import_bitsandbytes()
    with needing("train"):
        import peft
    return peft


def _stored(model: Any) -> "Mapping[str, torch.Tensor]":
    """Return what an adapter's file holds, under peft's names without their prefix."""
    from peft import get_peft_model_state_dict

    state, whole = model.state_dict(), getattr(model, ATTRIBUTE).whole
    found = get_peft_model_state_dict(model, state, NAME, save_embedding_layers=False)
    return {**found, **{name: state[name] for part in whole for name in state if name.startswith(f"{part}.")}}


def _heads(model: Any) -> set[str]:
    """Return the parts of a model that are none of its backbone: a classifier; not a language model's head, which is
    pretrained."""
    prefix = getattr(model, "base_model_prefix", "")
    if not hasattr(model, prefix):
        return set()
    output = model.get_output_embeddings()
    parts = {
        name: part for name, part in model.named_children() if name != prefix and any(True for _ in part.parameters())
    }
    return {name for name, part in parts.items() if output is None or output not in set(part.modules())}


def _outermost(names: set[str]) -> list[str]:
    """Return the modules that lie in none of the others."""
    return sorted(name for name in names if not any(name.startswith(f"{other}.") for other in names))


def _inside(model: Any, whole: list[str]) -> list[str]:
    """Return the linear layers of the parts that are trained whole."""
    return [name for name in _names(model) if any(f"{name}.".startswith(f"{part}.") for part in whole)]


def _names(model: Any) -> list[str]:
    import torch
    from transformers.pytorch_utils import Conv1D

    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)]


def _linear(model: Any) -> set[str]:
    return {name.rpartition(".")[2] for name in _names(model)}


def _check_untied(model: Any) -> None:
    """Refuse an adapter of a layer that shares its weights with another: merged, it would change both.

    Raises:
        ConfigError: with the layer.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    counts: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        counts[id(weight)] = counts.get(id(weight), 0) + 1
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and any(counts[id(w)] > 1 for w in module.get_base_layer().parameters()):
            raise ConfigError(
                f"model.lora.targets: {name} shares its weights with another layer, so that its adapter could not be "
                "merged: leave it out"
            )


def load_adapted(folder: Path) -> Any:
    """Return the model that an adapter of ours lies in the folder for, with it, on the CPU, in float32.

    Raises:
        UserError: the base cannot be had, or is another than the one that the adapter was trained on.
    """
    import transformers

    values, given = original_config(folder), _read(folder)
    base, revision = str(given.values.get("base_model_name_or_path")), given.values.get("revision")
    names = values.get("architectures")
    kind: Any = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UserError(f"{folder}: {ORIGIN} names no model of transformers")
    place = fetch(base, revision, key=f"{folder}: its base")
    try:
        config = transformers.AutoConfig.for_model(**values)
        model, found = load_weights(place, kind, config=config, ignore_mismatched_sizes=True)
    except Exception as error:
        raise UserError(f"{folder}: cannot load its base {base}: {first_line(error)}") from error
    odd = {entry[0] if isinstance(entry, tuple) else entry for entry in found["mismatched_keys"]}
    named = ModelConfig(name=base, revision=revision, lora=LoraConfig(adapter=str(folder)))
    attach(model, named, place, odd | {str(key) for key in found["missing_keys"]})
    return model
