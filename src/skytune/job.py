"""The job directory: all that worker processes need and all that they leave, in plain files.

job.json              what to do: `Job` below
inputs/<split>/       tokenized rows (Arrow files), one folder a split
inputs/tokenizer/     the tokenizer's own files
inputs/weights/       initial weights, where they are local (links to their files)
outputs/model/        the selected weights (safetensors), config and tokenizer
outputs/predictions/  one Arrow file a split: columns `row` (int64), `label` (int64), `logits` (list of float32)
outputs/history.jsonl one JSON object a line, see `History`
outputs/result.json   how it ended, see `Result`; written last, under a temporary name first
outputs/logs/         rank-N.log, and rank-N.error.json of a rank that failed
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from .common.files import replacing
from .common.json import load_json
from .common.paths import check_name, resolve_below
from .config import RunConfig, UserError, to_dict

SCHEMA = 1


@dataclass(kw_only=True)
class Job:
    """What `job.json` holds. Paths of inputs are relative to the job directory."""

    kind: str
    """`train` (train, then predict), `predict` (the weights under `inputs/weights` predict the splits) or
    `predict_files` (they predict on the files of `config.predict`, into `shards/`)."""

    run_key: str
    """Name plus hash of what decides the result."""

    config: RunConfig
    """The whole configuration (it holds no secrets)."""

    labels: list[str]
    """Class names in the order of their numbers."""

    train: str | None = None
    """Folder of the train split; None for `predict`."""

    evaluation: dict[str, str] = field(default_factory=dict)
    """Folder of every split that is predicted at the end, by name; `validation` is used during training too."""

    tokenizer: str | None = "inputs/tokenizer"
    """Folder of the tokenizer; None where the data set brings its own numbers."""

    weights: str | None = None
    """Folder of the initial weights, where they are local; None means `config.model.name` from the Hub."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Rows of every split."""

    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that decide results, where the job was written."""

    fingerprints: dict[str, str] = field(default_factory=dict)
    """`data`, `weights`, `code`: hashes of what the result depends on."""

    decisive: dict[str, Any] = field(default_factory=dict)
    """What decides the result; a checkpoint of another run is refused by it."""

    paths: list[str] = field(default_factory=list)
    """Folders in which the user's own modules lie."""

    stop_at_step: int | None = None
    """Stop after this optimizer step as if preempted, and leave the scores of the validation split: a rung of a search.
    It is no part of the run: the same job without it goes on from there."""

    origin: dict[str, Any] = field(default_factory=dict)
    """Where it was asked for: `command`, `host`, `time`, `git_commit`, `git_dirty` (see `launch.origin`)."""


class JobDir:
    """Access to the files of one job directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._job: Job | None = None

    @property
    def inputs(self) -> Path:
        """Folder of what the workers read."""
        return self.root / "inputs"

    @property
    def outputs(self) -> Path:
        """Folder of what the workers leave."""
        return self.root / "outputs"

    @property
    def model(self) -> Path:
        """Folder of the trained model."""
        return self.outputs / "model"

    @property
    def history(self) -> Path:
        """File of the training history."""
        return self.outputs / "history.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of the ranks' logs."""
        return self.outputs / "logs"

    @property
    def file(self) -> Path:
        """`job.json`, whether or not it is there."""
        return self.root / "job.json"

    def predictions(self, split: str) -> Path:
        """File of one split's predictions."""
        return self.outputs / "predictions" / f"{split}.arrow"

    def write_job(self, job: Job) -> None:
        """Write `job.json`."""
        self._job = None
        write_json(self.file, {"schema": SCHEMA, **to_dict(job)})

    def holds(self, job: Job) -> bool:
        """Whether `job.json` says the same as `job` (which may have been asked for from elsewhere)."""
        elsewhere: dict[str, Any] = {"paths": [], "origin": {}}
        return bool(
            {**read_json(self.existing()), **elsewhere}
            == json.loads(json.dumps({**to_dict(job), **elsewhere, "schema": SCHEMA}))
        )

    def existing(self) -> Path:
        """Return the path of `job.json`.

        Raises:
            UserError: it is not there.
        """
        if not self.file.is_file():
            raise UserError(f"{self.root} is no job directory: job.json is missing")
        return self.file

    @property
    def job(self) -> Job:
        """What `job.json` holds, as this object wrote it or first read it.

        Raises:
            UserError: no job there, or one that another version of this package wrote.
        """
        if self._job is None:
            self._job = self._read()
        return self._job

    def _read(self) -> Job:
        path = self.existing()
        try:
            values = load_json(path.read_bytes(), dict)
            schema = values.pop("schema", None)
            if schema != SCHEMA:
                raise UserError(f"{path} has schema {schema}, this version reads {SCHEMA}: run the command again")
            job = Job(**{**values, "config": RunConfig.parse(values["config"])})
            own = [name for name in (job.train, job.tokenizer, job.weights) if name is not None]
            for name in (*own, *job.evaluation.values()):
                resolve_below(self.root, name)
            for name in job.evaluation:
                check_name(name)
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
        return job

    def write_result(self, result: dict[str, Any]) -> None:
        """Write `outputs/result.json` atomically; its presence says that the job ended by itself."""
        write_json(self.outputs / "result.json", result)

    def forget(self, rank: int) -> None:
        """Take away what an earlier run of this folder said of its end: every process its error, rank 0 the result."""
        (self.logs / f"rank-{rank}.error.json").unlink(missing_ok=True)
        if rank == 0:
            (self.outputs / "result.json").unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        """Return `outputs/result.json`, or None while there is none."""
        path = self.outputs / "result.json"
        return read_json(path) if path.is_file() else None

    def read_history(self) -> list[dict[str, Any]]:
        """Return the records of `history.jsonl`; a last line that was cut short is left out."""
        return list(_json_lines(self.history))

    def write_error(self, rank: int, error: "RankError") -> None:
        """Write why a rank failed."""
        write_json(self.logs / f"rank-{rank}.error.json", asdict(error))

    def read_errors(self) -> dict[int, "RankError"]:
        """Return the errors that ranks left, by rank."""
        found = {}
        for path in sorted(self.logs.glob("rank-*.error.json")):
            try:
                found[int(path.name.split("-")[1].split(".")[0])] = RankError(**load_json(path.read_bytes(), dict))
            except (ValueError, TypeError):
                continue  # no rank's: the log has what is known
        return found


@dataclass(kw_only=True)
class RankError:
    """Why a rank failed."""

    type: str
    """Name of the exception's class."""

    message: str
    """Its text."""

    user: bool
    """True where the message alone says what to do (a `UserError`)."""

    traceback: str = ""
    """The whole traceback."""

    time: float = 0.0
    """Seconds since the epoch: the rank that failed first is the one to blame."""


def write_json(path: Path, values: Any) -> None:
    """Write JSON as a whole or not at all."""
    with replacing(path, uuid4().hex, flush=True) as part, part.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1, ensure_ascii=False, allow_nan=True)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: it is not JSON.
    """
    try:
        return load_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield load_json(line, dict)
            except ValueError:
                return
