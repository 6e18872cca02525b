"""What a step needs to know of its run that must not be part of its cache key: machine, launcher, logging."""

from typing import Any

from zenml import get_step_context
from zenml.client import Client
from zenml.orchestrators.utils import register_artifact_store_filesystem
from zenml.utils.time_utils import to_utc_timezone

from ..config import RunConfig
from ..materializers import StoredTokenizer, TokenizerMaterializer
from .types import Dataset, Datasets, TokenizerFiles

EXTRA = "config"
"""Key of the whole configuration in a step's `extra` (which ZenML's cache does not look at)."""


def run_config() -> RunConfig:
    """Return the configuration of the run that this step belongs to."""
    return RunConfig.parse(get_step_context().step_run.config.extra[EXTRA])


def started() -> float:
    """Return when the run that this step belongs to began, in seconds since the epoch."""
    return to_utc_timezone(get_step_context().pipeline_run.start_time).timestamp()


def input_metadata(name: str, key: str) -> dict[str, Any]:
    """Return metadata of an input artifact; empty where there is none."""
    versions = get_step_context().inputs.get(name) or []
    versions = versions if isinstance(versions, list) else [versions]
    found = versions[0].run_metadata.get(key) if versions else None
    return dict(found) if isinstance(found, dict) else {}


def named_sets(validation: Datasets) -> dict[str, Dataset]:
    """Return the evaluation sets by name: `load_data` hands on several as one DatasetDict."""
    if validation is None:
        return {}
    return dict(validation) if isinstance(validation, dict) else {"validation": validation}


def stored_tokenizer(artifact: TokenizerFiles) -> Any:
    """Return the tokenizer of an artifact, loaded when it is used; None where the data set brings its own numbers."""
    if artifact.materializer.attribute != TokenizerMaterializer.__name__:
        return artifact.load()  # that None, or stored by a materializer of the user's own
    store = Client().active_stack.artifact_store
    if artifact.artifact_store_id in (None, store.id):
        return _stored_tokenizer(artifact, store)
    with register_artifact_store_filesystem(artifact.artifact_store_id) as store:
        found = _stored_tokenizer(artifact, store)
        _ = found.folder
        return found


def _stored_tokenizer(artifact: TokenizerFiles, store: Any) -> StoredTokenizer:
    materializer = TokenizerMaterializer(artifact.uri, store)
    materializer.expected_content_hash = artifact.content_hash
    return StoredTokenizer(materializer)
