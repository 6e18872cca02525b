"""Names for what travels between the steps.

To a type checker they are the real classes. While steps run they are `Any`: ZenML evaluates annotations when a step is
defined, and importing datasets and transformers for that would cost seconds in every command, a fully cached one too.
ZenML then looks at the object itself to choose its materializer.

`TokenizerFiles` is what a step takes that needs no tokenizer but its files: ZenML loads nothing then (see
`context.stored_tokenizer`).
"""

from typing import TYPE_CHECKING, Any

from zenml.artifacts.unmaterialized_artifact import UnmaterializedArtifact as TokenizerFiles

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

    Datasets = Dataset | DatasetDict
    Tokenizer = PreTrainedTokenizerBase | None
    Predictions = DatasetDict | None
    Texts = DatasetDict | None
else:
    Dataset = DatasetDict = Datasets = Tokenizer = Predictions = Texts = Any
