"""A network with a classification head for the data's classes, ready to be trained; the same for the same seed."""

import contextlib
import copy
import logging
from collections.abc import Collection, Iterator
from typing import Any

from ..common.text import first_line
from ..config import ConfigError, ModelConfig, UserError
from ..config.targets import instantiate
from .classes import are_unnamed, match_classes, own_classes, sizes_offered
from .head import KINDS, OWN, TEXT, Head, auto_class, give_settings
from .lora import attach
from .quiet import quiet
from .source import fetch, load_config, load_weights
from .standin import AWAITS, NEW, new_parameters
from .tokenizer import agree_on_padding, check_vocabulary, read_tokenizer, vocabulary_size

logger = logging.getLogger(__name__)


def build_model(
    config: ModelConfig,
    path: str | None,
    labels: list[str],
    seed: int,
    tokenizer_folder: str | None = None,
    head: Head = TEXT,
) -> Any:
    """Return the network as an `nn.Module` on the CPU, in float32.

    Weights that no file holds (a new head; all with `pretrained=false`) are drawn from the seed alone: the state of
    torch's random numbers plays no part and is left as it was.

    Args:
        config: which network, and how it is changed.
        path: local folder with its files; None takes `config.name` (a package, a folder, or the Hub).
        labels: names of the classes, or outputs, in their order; none where the head has none.
        seed: decides new weights.
        tokenizer_folder: the tokenizer of the data; it is checked against the model's vocabulary and gives the
            padding token.
        head: what the task asks of the network.

    Raises:
        UserError: files that are missing or do not fit, a tokenizer that does not fit, something that is no module.
        NotReachable: the model is on the Hub, which does not answer.
    """
    # Before torch is imported: a model that is not there should not take seconds to be missed.
    folder = None if config._target_ else path or fetch(config.name, config.revision, weights=config.pretrained)
    tokenizer = read_tokenizer(tokenizer_folder) if tokenizer_folder else None
    new: set[str] = set()
    with seeded(seed):
        if folder is None:
            model = _from_target(config, labels, tokenizer)
            give_settings(model, head.settings)
        else:
            model, new = _from_files(config, folder, labels, seed, tokenizer, head)
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        if config.freeze_backbone:
            freeze_backbone(model, keep=new)
        if config.lora.on:
            attach(model, config, str(folder), new)
    setattr(model, NEW, sorted(new))
    return model


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's CPU random numbers in this block from `seed`, and go on as before after it."""
    import torch

    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def set_dropout(model: Any, probability: float) -> None:
    """Give every dropout layer of a module this probability.

    `change_dropout` on the configuration comes first (attention reads it from there); this catches layers that
    have theirs from somewhere else.
    """
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = probability


def change_dropout(config: Any, probability: float) -> list[str]:
    """Set every dropout probability in a transformers configuration and return the names that were set.

    The names differ by family: `hidden_dropout_prob`, `classif_dropout`, `seq_classif_dropout`, `attn_pdrop`, ...
    A probability of 0 switches LayerDrop (dropping whole layers) off as well; others leave it alone.
    """
    changed = []
    for name, value in config.to_dict().items():
        layers = "layerdrop" in name
        if not (layers or any(part in name for part in ("dropout", "pdrop", "drop_prob", "drop_rate"))):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if (number or (value is None and not layers)) and (probability == 0 or not layers):
            setattr(config, name, float(probability))
            changed.append(name)
    return changed


def freeze_backbone(model: Any, keep: Collection[str] = ()) -> None:
    """Stop the learning of everything but the classification head.

    Args:
        model: a module with `base_model_prefix`, as transformers' models have it.
        keep: parameters that learn although they lie in the backbone, because they are new.

    Raises:
        ConfigError: nothing tells the backbone from the head.
    """
    prefix = getattr(model, "base_model_prefix", "")
    backbone = getattr(model, prefix, None) if prefix else None
    if backbone is None or backbone is model:
        raise ConfigError(
            f"model.freeze_backbone: {type(model).__name__} does not say what its backbone is (base_model_prefix = "
            "the name of that attribute)"
        )
    for name, parameter in backbone.named_parameters():
        if f"{prefix}.{name}" not in keep:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"model.freeze_backbone: nothing of {type(model).__name__} is left to train")


def _from_target(config: ModelConfig, labels: list[str], tokenizer: Any) -> Any:
    import torch

    offered = sizes_offered(labels, None if tokenizer is None else vocabulary_size(tokenizer))
    target = str(config._target_)
    with quiet("transformers"):
        model = instantiate(target, config.args, offered=offered, key="model._target_")
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model._target_={target}: returned {type(model).__name__}, not a torch.nn.Module")
    if tokenizer is not None and getattr(model, "config", None) is not None:
        check_vocabulary(tokenizer, model.config)
    # What `save_model` needs to write a folder that can be read again.
    model.skytune_target = {
        "target": target,
        "args": config.args,
        "labels": labels,
        "vocab_size": offered.get("vocab_size"),
    }
    return model


def _from_files(
    config: ModelConfig, folder: str, labels: list[str], seed: int, tokenizer: Any, head: Head
) -> tuple[Any, set[str]]:
    """Return the model, and the names of parameters that no file held."""
    import torch

    Auto = auto_class(head.auto)
    values = load_config(config, folder)
    classes = _Classes(values, labels, Auto) if labels else None
    if labels:
        values.id2label = dict(enumerate(labels))
        values.label2id = {name: number for number, name in enumerate(labels)}
    for key in [key for key in values.to_dict() if key.startswith(OWN)]:
        delattr(values, key)  # what it was trained for before
    for key, value in head.settings.items():
        setattr(values, key, value)
    if tokenizer is not None:
        check_vocabulary(tokenizer, values)
        agree_on_padding(tokenizer, values)
    if config.dropout is not None:
        change_dropout(values, config.dropout)
    if type(values) not in Auto._model_mapping:
        raise UserError(
            f"model.name={config.name}: transformers has no {KINDS[head.auto]} of type '{values.model_type}'"
        )
    with quiet("transformers", "huggingface_hub"):
        if not config.pretrained:
            logger.info("model: all weights of %s are new, drawn from seed %d", config.name, seed)
            return Auto.from_config(values, dtype=torch.float32), set()
        awaited = new_parameters(folder)
        if awaited is not None:
            model = Auto.from_config(values, dtype=torch.float32)
            setattr(model, AWAITS, True)
            return model, awaited
        try:
            model, found = load_weights(folder, head.auto, config=values, ignore_mismatched_sizes=True)
        except Exception as error:
            raise UserError(f"model.name={config.name}: cannot load the weights: {first_line(error)}") from error
    new = _check_loaded(config.name, model, found)
    if classes is not None:
        new = classes.arrange(config.name, model, new)
    if new:
        logger.info("model: %s are new (%s has none that fit), drawn from seed %d", _list(new), config.name, seed)
    return model, new


class _Classes:
    """A head that a file may hold, for classes of its own, and the data's classes that it is to go on with."""

    def __init__(self, values: Any, labels: list[str], auto: Any) -> None:
        self.auto = auto
        self.trained_on, self.labels = own_classes(values.id2label), labels
        self.places = match_classes(labels, self.trained_on)
        numbers = are_unnamed(self.trained_on) or (are_unnamed(labels) and not any(n is not None for n in self.places))
        self.by_position = numbers and len(labels) == len(self.trained_on)
        """Where one side says only numbers, both are taken to be in the same order."""

    def arrange(self, name: str, model: Any, new: set[str]) -> set[str]:
        """Give every class its part of a head that was loaded; one for other classes is drawn anew.

        Args:
            name: the model, for messages.
            model: the network.
            new: its parameters that no file held.

        Returns:
            The parameters that are new now.
        """
        import torch

        trained, ours = ", ".join(self.trained_on), ", ".join(self.labels)
        if self.by_position:
            if not new and not are_unnamed(self.trained_on):
                logger.warning("model: the head of %s is for %s, taken as %s, in this order", name, trained, ours)
            return new
        if None in self.places and not are_unnamed(self.trained_on):
            logger.info("model: %s is for %s, not for %s (data.label_map says which is which)", name, trained, ours)
        if len(self.labels) != len(self.trained_on) or self.places == list(range(len(self.labels))):
            return new
        loaded = {key: place for key, place in _class_dimensions(model.config, self.auto).items() if key not in new}
        for key, dimension in loaded.items():
            parameter, owner = model.get_parameter(key), model.get_submodule(key.rpartition(".")[0])
            with torch.no_grad():
                if None not in self.places:
                    parameter.copy_(parameter.index_select(dimension, torch.tensor(self.places)))
                    continue
                parameter.zero_()
                parameter._is_hf_initialized = False
                model._init_weights(owner)
                parameter._is_hf_initialized = True
        if None not in self.places:
            logger.info("model: the head of %s is for %s: put into the order %s", name, trained, ours)
            return new
        return new | set(loaded)


def _class_dimensions(values: Any, auto: Any) -> dict[str, int]:
    """Return the parameters that have a part for every class, and the dimension that counts the classes."""
    import torch

    shapes = []
    for more in (0, 1):
        config = copy.deepcopy(values)
        config.num_labels = values.num_labels + more
        with torch.device("meta"):
            shapes.append({name: tensor.shape for name, tensor in auto.from_config(config).named_parameters()})
    return {
        name: next(place for place, (a, b) in enumerate(zip(shape, shapes[1][name], strict=True)) if a != b)
        for name, shape in shapes[0].items()
        if shape != shapes[1][name]
    }


def _check_loaded(name: str, model: Any, found: Any) -> set[str]:
    """Return the parameters that are new; a backbone that is not the file's is an error."""
    mismatched = {entry[0] if isinstance(entry, tuple) else entry for entry in found["mismatched_keys"]}
    new = {str(key) for key in found["missing_keys"]} | mismatched
    prefix = f"{model.base_model_prefix}."
    backbone = [key for key in model.state_dict() if key.startswith(prefix)]
    odd = sorted(key for key in mismatched if key.startswith(prefix))
    if odd:
        raise UserError(f"model.name={name}: the weights do not have the shapes that config.json says ({odd[0]})")
    if len([key for key in new if key.startswith(prefix)]) > len(backbone) / 2:
        raise UserError(f"model.name={name}: the weights are not those of a {type(model).__name__}: most are missing")
    return new


def _list(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
