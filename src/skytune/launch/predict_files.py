"""Files without labels to one file with a model's answers: shards that the workers write, put behind each other.

`<run folder>/shards/` holds the shards that are done, under a key of everything that decides them: a run that was
killed computes the others. The whole file appears by one rename (one upload), and its shards go.
"""

import hashlib
import logging
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import models
from ..common.text import first_line
from ..config import ConfigError, PredictConfig, RunConfig, UserError, to_dict
from ..config.schema.task import AUTO
from ..config.secrets import mask_secrets, resolve_secrets
from ..config.targets import user_paths
from ..data.files import find_files, hash_files
from ..data.images import IMAGE
from ..data.sources import Source
from ..data.stream import KEY
from ..data.written import join_shards
from ..job import Job, JobDir, read_json, write_json
from ..tasks import find_task, of_saved
from .local import LocalLauncher
from .multinode.topology import nodes_of
from .origin import origin
from .run_dir import RunFolder, identity_config, model_name, run_key
from .run_job import checkpoint_hash, write_inputs

log = logging.getLogger(__name__)

CLASSES = "text-classification"
"""The task of a network of one's own that says nothing of it."""

DONE = "predicted.json"
"""In the run's folder: which file was written, and what it held."""


def check_files(config: PredictConfig) -> None:
    """See that the input is there, and that the output can be written and is not part of it.

    Raises:
        UserError: with the key.
    """
    files = find_files(str(config.input), KEY)
    system, target = _target(config)
    if any(type(system) is type(other) and target == path for other, path in files):
        raise ConfigError(f"predict.output={config.output}: is one of the files of {KEY}")
    if _is_local(system):
        place = next(folder for folder in Path(target).absolute().parents if folder.exists())
        if Path(target).is_dir() or not place.is_dir() or not os.access(place, os.W_OK):
            raise UserError(f"predict.output={config.output}: cannot be written")


def predict_files(config: RunConfig, checkpoint: str) -> dict[str, Any]:
    """Predict on the files of `config.predict`, in worker processes on this machine, and write the output.

    Returns:
        `output`, `rows`, `left_out` (malformed rows), `without_text`, `counts` of predictions where they are names,
        `result.json`'s numbers, `run_key`, `run_folder`; `reused` where the very file was there already.

    Raises:
        UserError: no model there, a file that cannot be read or written, or anything that a worker names.
    """
    nodes = nodes_of(config.launch, os.environ)
    if nodes.count > 1:
        raise ConfigError(f"launch.nodes={nodes.count}: pipeline=predict computes on one machine")
    config = mask_secrets(config)
    saved = models.saved_model(checkpoint)
    folder, spec = Path(saved.folder), str(config.predict.input)
    name = config.task.name if config.task.name != AUTO else of_saved(saved, f"checkpoint={checkpoint}")
    config = replace(config, task=replace(config.task, name=CLASSES if name == AUTO else name))
    task = find_task(config.task)
    odd = [c for c in task.columns(config.data) if c.needed and c.kind != "text" and c.role != IMAGE]
    if odd:
        raise ConfigError(f"pipeline=predict: task={name} reads '{odd[0].name}', which is no text; score it instead")
    tokenizer, limit = task.opens(config.data, config.model)
    config = replace(config, limit_eval_batches=None, data=replace(config.data, max_length=limit))
    given = to_dict(config.predict) | {"input": hash_files(spec, KEY), "output": config.predict.kind}
    if config.data.image is not None:
        given["images"] = Source(config.data).hash_images(spec, KEY)
    read = {key: value for key, value in to_dict(config.data).items() if key != "bad_rows"}
    # Keys of predictions from before there were images stay what they were.
    read = {key: value for key, value in read.items() if value is not None or not key.startswith("image")}
    prints = {
        "data": models.hash_values([given, read, config.eval.batch_size]),
        "weights": checkpoint_hash(folder),
    }
    key = run_key(replace(config, name=config.name or f"predict-{model_name(checkpoint)}"), prints)
    claim = RunFolder(key).claim()
    job = JobDir(claim.path)
    try:
        done = {"run_key": key, "run_folder": str(job.root), "output": str(config.predict.output)}
        if config.cache and (before := _already(job, config.predict)) is not None:
            return {**before, **done, "reused": True}
        if not config.cache:
            shutil.rmtree(shards_of(job), ignore_errors=True)
        shutil.rmtree(job.inputs, ignore_errors=True)
        shutil.rmtree(job.outputs, ignore_errors=True)
        shards_of(job).mkdir(parents=True, exist_ok=True)
        written = Job(
            kind="predict_files",
            run_key=key,
            config=replace(config, predict=replace(config.predict, input=_absolute(str(config.predict.input)))),
            labels=saved.labels,
            weights="inputs/weights",
            fingerprints=prints,
            decisive={**identity_config(config), "fingerprints": prints},
            paths=user_paths(),
            origin=origin(),
        )
        write_inputs(job, written, {}, tokenizer, folder)
        LocalLauncher().run(job, config.compute)
        result = job.read_result()
        assert result is not None, "a launcher raises where there is no result"
        done |= {**result, **_put_together(job, config.predict)}
        write_json(job.root / DONE, done)
        shutil.rmtree(shards_of(job))
        claim.finish()
    finally:
        claim.close()
    return {**done, "reused": False}


def shards_of(job: JobDir) -> Path:
    """Return the folder of the shards that are done."""
    return job.root / "shards"


def _put_together(job: JobDir, config: PredictConfig) -> dict[str, Any]:
    """Write the output; return what is known of it."""
    notes = [read_json(path) for path in sorted(shards_of(job).glob("*.json"))]
    parts = [shards_of(job) / f"{number:08d}.{config.kind}" for number in range(len(notes))]
    system, target = _target(config)
    local = _is_local(system)
    whole = Path(target).with_name(f".{Path(target).name}.part") if local else job.outputs / f"whole.{config.kind}"
    counts = sum((Counter(note["counts"]) for note in notes), Counter[str]())
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        join_shards(parts, whole, config.kind)
        with whole.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = whole.stat().st_size
        if local:
            whole.replace(target)
        else:
            system.put_file(str(whole), target)
            whole.unlink()
    except UserError:
        raise
    except Exception as error:  # every file system has its own
        raise UserError(f"predict.output={config.output}: cannot be written: {first_line(error)}") from error
    finally:
        if local:
            whole.unlink(missing_ok=True)
    return {
        "rows": sum(note["rows"] for note in notes),
        "without_text": sum(note["without_text"] for note in notes),
        "left_out": sum(note["left_out"] for note in notes),
        "counts": dict(counts.most_common()),
        "bytes": size,
        "sha256": digest,
    }


def _already(job: JobDir, config: PredictConfig) -> dict[str, Any] | None:
    """Return what this very run wrote before, where the output still holds it."""
    path = job.root / DONE
    if not path.is_file():
        return None
    before: dict[str, Any] = read_json(path)
    system, target = _target(config)
    try:
        if system.isfile(target) and system.size(target) == before["bytes"]:
            with system.open(target, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == before["sha256"]:
                    return before
    except OSError:
        pass
    return None


def _target(config: PredictConfig) -> tuple[Any, str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(resolve_secrets(str(config.output)))
    except Exception as error:  # every file system has its own
        raise UserError(f"predict.output={config.output}: {first_line(error)}") from error
    return system, str(path)


def _is_local(system: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)


def _absolute(spec: str) -> str:
    return spec if "://" in spec or "::" in spec else str(Path(spec).expanduser().absolute())
