"""The tokenizer of a model: where it comes from, how long a text may be, whether it fits the model's vocabulary."""

from typing import Any

from ..common.text import first_line
from ..config import ModelConfig, SpecialTokens, UserError
from .quiet import quiet
from .source import TOKENIZER, ModelSource, fetch

OFFSET_FAMILIES = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
"""Model types whose position numbers start behind the padding token's number: two places fewer than the table has."""

RULE = "skytune_special_tokens"
"""Key of a tokenizer's files for what `data.special_tokens` was when it was used here first."""

NO_LIMIT = 1_000_000
"""`model_max_length` at and above this is transformers' way to say that nobody knows."""


def load_tokenizer(config: ModelConfig, source: ModelSource | None = None) -> Any:
    """Return the tokenizer of a model.

    A tokenizer without a padding token (GPT-2, Llama) pads with its end-of-text token, as is usual.

    Args:
        config: the model; `tokenizer` goes before `name`.
        source: the resolved model, to save looking for it again.

    Raises:
        UserError: no tokenizer there, or one without any token to pad with.
        NotReachable: it is on the Hub, which does not answer.
    """
    if config.tokenizer:
        folder = fetch(config.tokenizer, weights=False, key=TOKENIZER)
    elif source is not None and source.path:
        folder = source.path
    else:
        revision = source.revision if source is not None and source.revision else config.revision
        folder = fetch(config.name, revision, weights=False)
    return read_tokenizer(folder, config.tokenizer or config.name)


def read_tokenizer(folder: str, name: str | None = None) -> Any:
    """Return the tokenizer in a local folder; `name` is what messages call it.

    Raises:
        UserError: as in `load_tokenizer`.
    """
    from transformers import AutoTokenizer

    name = name or folder
    try:
        with quiet("transformers", "huggingface_hub"):
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its files hold
        reason = first_line(error)
        raise UserError(f"no usable tokenizer in {name} (model.tokenizer=... names another): {reason}") from error
    # Where the files are missing, transformers makes up a tokenizer that knows nothing but its special tokens.
    if len(tokenizer.get_vocab()) <= len(set(tokenizer.all_special_tokens)):
        raise UserError(f"no usable tokenizer in {name} (model.tokenizer=... names another): it has no vocabulary")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise UserError(
                f"the tokenizer of {name} has no padding token and no end token (model.tokenizer=... names another)"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def agree_on_padding(tokenizer: Any, config: Any) -> None:
    """Make a tokenizer and a model's configuration name one padding token; in place, on one of the two.

    A row's logits are the same alone and padded only if they do: classifiers of decoders look for the last token that
    is not padding. They follow the tokenizer; models that count positions from the padding token have learned theirs,
    so the tokenizer follows them.

    Args:
        tokenizer: a transformers tokenizer with a padding token.
        config: the model's transformers configuration.
    """
    values = config.get_text_config()
    learned = getattr(values, "pad_token_id", None)
    if values.model_type in OFFSET_FAMILIES and learned is not None and 0 <= learned < vocabulary_size(tokenizer):
        if learned != tokenizer.pad_token_id:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(learned)
    else:
        for level in (config, values):
            level.pad_token_id = tokenizer.pad_token_id


def read_specials_as(tokenizer: Any, rule: SpecialTokens | None) -> None:
    """Have a tokenizer take special tokens that are written out in a text for text, or for what they stand for.

    Its files say so from then on, so that the exported model's tokenizer does the same.

    Args:
        tokenizer: a transformers tokenizer.
        rule: None is the one that its files say, else `text`.
    """
    rule = SpecialTokens(rule or tokenizer.init_kwargs.get(RULE) or SpecialTokens.text)
    tokenizer.split_special_tokens = rule is SpecialTokens.text
    tokenizer.init_kwargs |= {RULE: rule.value, "split_special_tokens": tokenizer.split_special_tokens}


def takes_specials_as_text(tokenizer: Any) -> bool:
    """Return the rule that `read_specials_as` gave a tokenizer whose own texts are a template's, and so control.

    From then on it reads them as control where nobody asks for more: chat templates write special tokens out.
    """
    tokenizer.split_special_tokens = False
    tokenizer.init_kwargs["split_special_tokens"] = False
    return tokenizer.init_kwargs.get(RULE) != SpecialTokens.control.value


def see_blanks(tokenizer: Any) -> None:
    """Have a byte-level tokenizer (GPT-2's, RoBERTa's) see a blank before a word that is given alone, as it saw one
    before every word when its model was trained; in place, and its files say so from then on."""
    part = tokenizer.backend_tokenizer.pre_tokenizer
    if getattr(tokenizer, "add_prefix_space", None) is False and hasattr(part, "add_prefix_space"):
        part.add_prefix_space = tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True
        tokenizer.backend_tokenizer.pre_tokenizer = part


def max_length(tokenizer: Any, config: Any) -> int | None:
    """Return the number of tokens that the model takes at most; None where nothing is known.

    Args:
        tokenizer: a transformers tokenizer, or None.
        config: the model's transformers configuration, or None.
    """
    limits = []
    told = getattr(tokenizer, "model_max_length", None)
    if isinstance(told, int) and 0 < told < NO_LIMIT:
        limits.append(told)
    places = getattr(config, "max_position_embeddings", None)
    if isinstance(places, int) and places > 0:
        offset = 2 if getattr(config, "model_type", "") in OFFSET_FAMILIES else 0
        limits.append(places - offset)
    return min(limits) if limits else None


def vocabulary_size(tokenizer: Any) -> int:
    """Return the number of rows that an embedding needs for every token of this tokenizer."""
    return int(max(tokenizer.get_vocab().values(), default=-1)) + 1


def check_vocabulary(tokenizer: Any, config: Any) -> None:
    """See that every token has a place in the model's embedding.

    Args:
        tokenizer: a transformers tokenizer.
        config: the model's transformers configuration; one without `vocab_size` passes.

    Raises:
        UserError: the tokenizer has tokens beyond the model's vocabulary.
    """
    places = getattr(config, "vocab_size", None)
    if not isinstance(places, int):
        return
    size = vocabulary_size(tokenizer)
    if size > places:
        raise UserError(
            f"the tokenizer does not fit the model: it has {size:,} tokens, the model's vocabulary {places:,}; "
            "take the model's own tokenizer (leave model.tokenizer empty)"
        )
