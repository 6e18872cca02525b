"""What all tests share: an environment of their own, a tiny model made from a config, and jobs around it."""

import atexit
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

# Before anything of Hugging Face is imported: no test may reach for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["ZENML_ANALYTICS_OPT_IN"] = "false"
# Other tests run beside each: a second thread that waits for its core takes it from them, and both for each other (half
# a second of small steps took half a minute).
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# ZenML writes the ids of the store it uses into the repository's `.zen`: not into that of whoever runs the tests.
os.environ["ZENML_REPOSITORY_PATH"] = tempfile.mkdtemp(prefix="skytune-tests-")
Path(os.environ["ZENML_REPOSITORY_PATH"], ".zen").mkdir()
atexit.register(shutil.rmtree, os.environ["ZENML_REPOSITORY_PATH"], ignore_errors=True)

# A shell that starts them in its background has them ignore Ctrl-C, and so would all whom they tell by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
AWS = ROOT / "tests" / "aws"

# Helpers of several rooms (`forked_workers`, `job_dirs`, `faults` ...); last on the path, so that they hide nobody's
# module.
sys.path.append(str(ROOT / "tests" / "helpers"))
pytest_plugins = ["training_fixtures"]

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["good", "bad", "fine", "poor", "nice", "dull", "the", "a", "film", "plot", "cast", "is", "was", "it"],
]


PROCESSES = (
    "aws",
    "benchmarks",
    "checkpoint/test_kill.py",
    "checkpoint/test_s3_faults.py",
    "config/test_cli.py",
    "data/test_hub.py",
    "distributed",
    "docker",
    "doctor",
    "launch/multinode",
    "launch/remote",
    "launch/sagemaker/test_node.py",
    "launch/skypilot",
    "launch/test_local.py",
    "launch/test_predict_files.py",
    "launch/test_run_dir.py",
    "launch/test_warm.py",
    "materializers",
    "packed/test_packed_step.py",
    "packed/test_sharded_update.py",
    "packed/test_whole_run.py",
    "pipelines",
    "report/test_page.py",
    "sagemaker",
    "search",
    "serve/test_server.py",
    "stacks",
    "steps/test_fingerprints.py",
    "study/test_kill.py",
    "training/callbacks/test_tracker_feeds.py",
    "training/strategy",
    "training/test_damage.py",
    "training/test_equivalence.py",
    "training/test_metrics.py",
    "training/test_resume_exact.py",
    "training/test_stop_at_step.py",
    "training/test_worker.py",
)
"""Files and folders whose tests start programs, servers or workers: `make test-fast` leaves them out."""

WORKERS = {"forked", "forking", "here", "lives", "s3_process", "s3_server"}
"""Fixtures that do so anywhere else."""


LONG = (
    "launch/test_predict_files.py",
    "pipelines/test_cache.py",
    "sagemaker/test_training.py",
    "pipelines/test_bad_input.py",
    "pipelines/test_runs.py",
    "pipelines/test_examples.py",
    "training/test_faults_s3.py",
    "pipelines/test_release.py",
    "pipelines/test_resume_elsewhere.py",
    "pipelines/test_own_things.py",
    "search/test_driver.py",
    "training/strategy/test_equivalence.py",
    "training/strategy/test_saving.py",
    "training/strategy/test_deepspeed.py",
    "training/callbacks/test_tracker_feeds.py",
)
"""The longest of the slow files, which one process should not have alone at the end: longest first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with fast tests alone come first, then the longest, so that no process has one of them alone at the end.
    Those on the stand-in for AWS, which take long and mostly wait, come before all others: where there are several
    processes one has them and the others all the rest."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    long = {ROOT / "tests" / file: place for place, file in enumerate(LONG)}

    def place(item: pytest.Item) -> tuple[int, int]:
        if AWS in item.path.parents:
            return 0, 0
        return (2, long.get(item.path, len(LONG))) if item.path in slow else (1, 0)

    items.sort(key=place)
    places = tuple(str(ROOT / "tests" / room) for room in PROCESSES)
    for item in items:
        if str(item.path).startswith(places) or WORKERS & set(getattr(item, "fixturenames", ())):
            item.add_marker("processes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with all tests on the stand-in for AWS in one process: it is one session's."""
    from xdist.scheduler import LoadFileScheduling

    class ShardedUpdate(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/aws" if nodeid.startswith("tests/aws/") else str(super()._split_scope(nodeid))

    return ShardedUpdate(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test keeps its runs in a folder of its own."""
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "skytune-home"))
    if "boto3" in sys.modules:  # its default session keeps the credentials that it found first
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    if "s3fs" in sys.modules:  # so do its file systems, with the server that was there first
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def start_hub() -> Iterator[Callable[[], Any]]:
    """Return a starter of servers that stand in for the Hugging Face Hub (`helpers/hub_server.py`)."""
    spec = importlib.util.spec_from_file_location("hub_server", ROOT / "tests" / "helpers" / "hub_server.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    started: list[Any] = []

    def start() -> Any:
        started.append(module.Hub())
        return started[-1]

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def tiny_vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer ViT for images of 16 x 16 pixels and its processor, in a folder."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    folder = tmp_path_factory.mktemp("models") / "tiny-vit"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **sizes)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer BERT without a classification head and its word tokenizer, in a folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_classifier(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a head for `negative` and `positive` that is drawn at random."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "tiny-classifier"
    torch.manual_seed(3)
    config = BertConfig.from_pretrained(tiny_model)
    config.id2label, config.label2id = {0: "negative", 1: "positive"}, {"negative": 0, "positive": 1}
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight)  # both classes are found
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentences() -> Callable[[int, int], list[tuple[str, int]]]:
    """Return a maker of (text, label) rows of varying length that a tiny model can learn."""
    import random

    def make(rows: int, seed: int = 0) -> list[tuple[str, int]]:
        draw = random.Random(seed)
        found = []
        for _ in range(rows):
            label = draw.randrange(2)
            mood = draw.choice([["bad", "poor", "dull"], ["good", "fine", "nice"]][label])
            rest = [
                draw.choice(["the", "a", "film", "plot", "cast", "is", "was", "it"])
                for _ in range(draw.randrange(2, 20))
            ]
            rest.insert(draw.randrange(len(rest)), mood)
            found.append((" ".join(rest), label))
        return found

    return make


@pytest.fixture
def tokenized(tiny_model: Path, sentences: Callable[[int, int], list[tuple[str, int]]]) -> Callable[..., Any]:
    """Return a maker of tokenized splits."""

    def make(rows: int, seed: int = 0) -> Any:
        from datasets import ClassLabel, Dataset, Features, List, Value
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        texts, labels = zip(*sentences(rows, seed), strict=True)
        tokens = tokenizer(list(texts), truncation=True)
        features = Features(
            input_ids=List(Value("int32")),
            attention_mask=List(Value("int8")),
            labels=ClassLabel(names=["negative", "positive"]),
        )
        columns = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "labels": list(labels)}
        return Dataset.from_dict(columns, features=features).with_format("torch")

    return make


@pytest.fixture
def run_job(tiny_model: Path, tokenized: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that trains the tiny model in real worker processes; keyword arguments change the config."""

    def run(
        rows: int = 64,
        validation: int = 16,
        test: int = 16,
        data_seed: int = 0,
        since: float = inf,
        launcher: Any = None,
        stop_at_step: int | None = None,
        **groups: Any,
    ) -> Any:
        from transformers import AutoTokenizer

        from skytune.config import RunConfig, from_dict
        from skytune.launch import train

        values: dict[str, Any] = {"model": {"name": str(tiny_model)}, "compute": {"device": "cpu"}, "epochs": 1}
        values["launch"] = {"num_processes": 1, "threads": 1}
        values["batch"] = {"global_size": 8}
        for key, value in groups.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        splits = {"validation": tokenized(validation, data_seed + 1), "test": tokenized(test, data_seed + 2)}
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        how = {"since": since, "launcher": launcher, "stop_at_step": stop_at_step}
        return train(from_dict(RunConfig, values), tokenized(rows, data_seed), splits, tokenizer, **how)

    return run


def python(*words: str) -> list[str]:
    """Return a command of this interpreter."""
    return [sys.executable, *words]
