"""Folders that are not what `transformers` trains from: which tool saved them, and what makes a usable one of them."""

from pathlib import Path
from typing import Any

from ..common.json import load_json
from ..config import UserError

ADAPTER = "adapter_config.json"
ORIGIN = "skytune_adapter.json"
"""What an adapter of ours has beside it."""

MERGE = (
    'merge it into its base: python -c "from peft import AutoPeftModelForSequenceClassification as M; '
    "M.from_pretrained('{folder}').merge_and_unload().save_pretrained('{folder}-merged')\", then "
    "{key}={folder}-merged model.tokenizer={folder}"
)
CONVERT = (
    'convert it: python -c "import glob, torch; from safetensors.torch import save_file; '
    "save_file({{k: v.contiguous().clone() for f in glob.glob('{folder}/pytorch_model*.bin') for k, v in "
    "torch.load(f, map_location='cpu', weights_only=True).items()}}, '{folder}/model.safetensors', "
    "{{'format': 'pt'}})\" (weights_only keeps a pickle from running code)"
)
ORIGINAL = "give the folder of the model that it was made from, with config.json and model.safetensors"
OLDER = (
    "convert it with an older transformers: pip install \"transformers<5\", then AutoModel.from_pretrained('{folder}', "
    "{flag}=True).save_pretrained('{folder}-torch')"
)

KINDS = (
    ("skytune_model.json", "a module of one's own", "name it: model._target_=...; checkpoint={folder} scores it"),
    ("*.gguf", "GGUF, weights for llama.cpp", ORIGINAL),
    ("openvino_model.xml", "OpenVINO, for inference alone", ORIGINAL),
    ("*.onnx", "ONNX, for inference alone", ORIGINAL),
    ("onnx/*.onnx", "ONNX, for inference alone", ORIGINAL),
    ("pytorch_model*.bin", "pickled weights (pytorch_model.bin), which can run code when read", CONVERT),
    ("tf_model.h5", "TensorFlow weights", OLDER.replace("{flag}", "from_tf")),
    ("flax_model.msgpack", "Flax weights", OLDER.replace("{flag}", "from_flax")),
    ("saved_model.pb", "a TensorFlow SavedModel", ORIGINAL),
    ("*.mlpackage", "Core ML, for inference alone", ORIGINAL),
    ("weights.npz", "MLX weights", ORIGINAL),
    ("consolidated*", "a model as its makers saved it (consolidated)", "give the folder in transformers' own format"),
    ("*.distcp", "a sharded checkpoint of torch (DCP)", "have the tool that trained it write a whole model"),
    ("zero_to_fp32.py", "a checkpoint of DeepSpeed", "run the folder's zero_to_fp32.py --safe_serialization first"),
    ("*.ckpt", "a checkpoint of Lightning", "have the tool that trained it write a model (save_pretrained)"),
    ("model_index.json", "a pipeline of diffusers", "no text classifier can be trained from it"),
    ("*.pt", "pickled weights (.pt)", "have the tool that trained it write a model (save_pretrained)"),
    ("*.pth", "pickled weights (.pth)", "have the tool that trained it write a model (save_pretrained)"),
)
"""Files by which a folder is known where it has no weights of ours: what it is, and the way out."""

INSIDE = ("0_Transformer", "0_BERT", "outputs/model", "model", "snapshots/*", "checkpoint-*", "step-*")
"""Where tools put the model below the folder that people give."""


def check_format(path: Path, named: str, weights: bool) -> None:
    """Refuse a folder without a model that transformers trains from, or with something beside it that would be lost.

    Args:
        path: the folder, absolute.
        named: key and value that name it in the configuration.
        weights: whether the model's weights are wanted too.

    Raises:
        UserError: what the folder is, and the way out.
    """
    key, folder = named.partition("=")[0], str(path)
    found = (path / "config.json").is_file()
    if (path / ADAPTER).is_file() and (found or not (path / ORIGIN).is_file()):
        base = _values(path / ADAPTER).get("base_model_name_or_path") or "another model"
        way = MERGE.format(folder=folder, key=key)
        if not found:
            raise UserError(
                f"{named}: is an adapter (PEFT) of {base}, not a model: model.name={base} model.lora.adapter={folder} "
                f"trains on; or {way}"
            )
        raise UserError(
            f"{named}: holds an adapter (PEFT) beside a model, and it is not clear which is meant: {way}; or, for the "
            f"model alone, move the files adapter_* away"
        )
    quantized = found and weights and _values(path / "config.json").get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else ""
        raise UserError(f"{named}: its weights are quantized ({method}), and cannot be trained: {ORIGINAL}")
    if (path / ADAPTER).is_file() or (found and (not weights or any(path.glob("model*.safetensors")))):
        return
    for pattern, what, way in KINDS:
        if any(path.glob(pattern)):
            more = "" if found else "; it has no config.json either"
            raise UserError(f"{named}: holds {what}: {way.format(folder=folder, key=key)}{more}")
    for pattern in INSIDE:
        inner = max((p for p in path.glob(pattern) if (p / "config.json").is_file()), default=None)
        if inner is not None:
            raise UserError(f"{named}: the model lies deeper in this folder: {key}={inner}")
    other = min((p.name for p in path.glob("*.safetensors")), default=None)
    if not found:
        raise UserError(f"{named}: this folder holds no config.json, so it is no Hugging Face model")
    if other is not None:
        raise UserError(f"{named}: its weights are in {other}; transformers wants them in model.safetensors: rename it")
    way = "; model.pretrained=false draws new ones" if key == "model.name" else ""
    raise UserError(f"{named}: holds no weights (model.safetensors){way}")


def _values(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds, {} where it cannot be read: whoever needs it says so."""
    try:
        return dict(load_json(file.read_bytes(), dict))
    except (OSError, ValueError):
        return {}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and no model beside it."""
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()


def original_config(folder: Path) -> dict[str, Any]:
    """Return the values of the `config.json` of the model that an adapter of ours belongs to.

    Raises:
        UserError: the adapter is from elsewhere.
    """
    if not (folder / ORIGIN).is_file():
        raise UserError(
            f"{folder}: is an adapter from elsewhere: model.name=BASE model.lora.adapter={folder} goes on with it"
        )
    values = load_json((folder / ORIGIN).read_bytes(), dict)["config"]
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"{ORIGIN} holds no configuration of a model")
    return values
