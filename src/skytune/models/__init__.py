"""The room of models: a network and its tokenizer by name, by folder or by `_target_`, and how they are stored.

Importing it costs nothing: torch and transformers are imported where they are used. It needs no `datasets`.
"""

from .build import build_model
from .formats import is_adapter
from .hashing import hash_file, hash_values
from .head import Head, auto_of, give_settings, own_settings
from .lora import check_adapter, has_adapter, trained_state
from .processor import PROCESSOR, load_processor, read_processor
from .quiet import quiet
from .saved import TARGET_FILE, SavedModel, load_saved, merge_adapter, save_model, saved_model
from .source import (
    ModelSource,
    fetch,
    lacks_files,
    load_config,
    local_folder,
    model_files,
    resolve,
)
from .standin import AWAITS, NEW, stand_in
from .tokenizer import (
    agree_on_padding,
    check_vocabulary,
    load_tokenizer,
    max_length,
    read_specials_as,
    read_tokenizer,
    takes_specials_as_text,
    vocabulary_size,
)
