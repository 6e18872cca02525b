"""`predict`: files without labels, and where they go with a model's answers beside them."""

from dataclasses import dataclass

from ..checks import at_least
from ..errors import ConfigError

OUTPUTS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".parquet": "parquet"}
"""Endings of the file that is written, and what is written then."""


@dataclass(kw_only=True)
class PredictConfig:
    """What `pipeline=predict` reads and writes; `data.text` and the like say how files are read."""

    input: str | None = None
    """Files to predict on, without labels: a path, glob or URL, of any kind that `data.train` may be. Columns of all
    files are the same; the files follow each other by name."""

    output: str | None = None
    """The file to write, a path or URL that ends with .csv, .tsv, .jsonl or .parquet: all rows in their order, all
    columns, and the model's answers as new ones. It appears once it is whole."""

    prefix: str = ""
    """Before the names of the new columns (`prediction`, `probability`): for files that have such columns already."""

    logits: bool = False
    """Write the model's own numbers, too, as a column of lists: `logits`."""

    shard_rows: int = 10_000
    """Rows that are read, computed and written at once: what memory has to hold, and all that a kill can cost."""

    def __post_init__(self) -> None:
        at_least(self, "predict", 1, "shard_rows")
        if self.output is not None:
            self.kind  # noqa: B018

    @property
    def kind(self) -> str:
        """What is written: `csv`, `tsv`, `jsonl` or `parquet`.

        Raises:
            ConfigError: `output` does not say.
        """
        for ending, kind in OUTPUTS.items():
            if str(self.output).lower().endswith(ending):
                return kind
        raise ConfigError(f"predict.output={self.output}: must end with {', '.join(OUTPUTS)}")
