"""Real pipeline runs in a real ZenML store, on this disk and on S3, each in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skytune.materializers.files import is_pickle

datasets = pytest.importorskip("datasets")
pytest.importorskip("torch")

RUN = """
import json, os, sys, tempfile
from pathlib import Path
from typing import Annotated, Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from transformers import PreTrainedTokenizerBase
from zenml import pipeline, step
from zenml.client import Client
from zenml.enums import ExecutionMode, StackComponentType
from zenml.integrations.registry import integration_registry

from skytune.config import UserError
from skytune.materializers import MATERIALIZERS, DatasetMaterializer, ModelFolder, register

register()
HERE = Path(__file__).resolve().parent
FEATURES = Features({"input_ids": List(Value("int32")), "labels": ClassLabel(names=["negative", "positive"])})


def rows(count: int) -> Dataset:
    columns = {"input_ids": [[i] * (i % 7) for i in range(count)], "labels": [i % 2 for i in range(count)]}
    return Dataset.from_dict(columns, features=FEATURES).with_format("torch", columns=["labels"])


def temporary() -> list[str]:
    return sorted(entry.name for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith("zenml-"))


def say(word: str, *values: Any) -> None:
    kind = "s3" if Client().active_stack.artifact_store.path.startswith("s3") else "local"
    print("SAID", json.dumps([kind, word, *values]))


@step
def load(count: int) -> tuple[Annotated[Dataset, "rows"], Annotated[PreTrainedTokenizerBase, "tokenizer"]]:
    from transformers import BertTokenizer

    return rows(count), BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "good": 5})


@step
def split(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> tuple[Annotated[DatasetDict | Dataset, "splits"], Annotated[Any, "anything"], Annotated[ModelFolder, "model"]]:
    say("inputs", type(rows).__name__, rows.cache_files[0]["filename"], tokenizer("good")["input_ids"])
    folder = HERE / "model"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(100_000))
    parts = rows.train_test_split(0.25, seed=1)
    return DatasetDict(test=parts["test"], train=parts["train"]), rows.select(range(3)), ModelFolder(folder)


@step(output_materializers={"explicit": DatasetMaterializer})
def look(splits: DatasetDict | Dataset, anything: Any, model: ModelFolder) -> Annotated[Any, "explicit"]:
    names = {name: len(part) for name, part in splits.items()}
    say("look", names, type(anything).__name__, str(model.path))
    say("during", temporary())
    return splits["train"].select(range(2))


@pipeline(enable_cache=True, execution_mode=ExecutionMode.FAIL_FAST)
def flow(count: int) -> None:
    splits, anything, model = split(*load(count))
    look(splits, anything, model)


@step
def bad() -> tuple[Annotated[Dataset, "first"], Annotated[Dataset, "second"]]:
    return rows(10), rows(3).with_transform(lambda batch: batch)


@step
def unknown() -> Annotated[Any, "thing"]:
    return object()


@pipeline(enable_cache=False, execution_mode=ExecutionMode.FAIL_FAST)
def failing(which: str) -> None:
    {"bad": bad, "unknown": unknown}[which]()


def use_s3(endpoint: str) -> None:
    client = Client()
    client.create_stack_component(
        "s3", "s3", StackComponentType.ARTIFACT_STORE,
        configuration={"path": f"s3://bucket/{HERE.parent.name}", "key": "x", "secret": "x",
                       "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}},
    )
    client.create_stack(
        "remote", {StackComponentType.ORCHESTRATOR: "default", StackComponentType.ARTIFACT_STORE: "s3"}
    )
    client.activate_stack("remote")


def try_all() -> None:
    for step_run in flow(20).steps.values():
        for name, (version,) in step_run.outputs.items():
            say("output", name, version.uri, version.materializer.import_path, str(version.id),
                len(version.visualizations or []), version.run_metadata.get("rows"))
    say("again", {name: str(s.status) for name, s in flow(20).steps.items()})
    for which in ("bad", "unknown"):
        try:
            failing(which)
        except UserError as error:
            say("refused", which, str(error))
    store = Client().active_stack.artifact_store
    say("left", [os.fspath(entry) for name in ("bad", "unknown") if store.exists(f"{store.path}/{name}")
                 for root, _, files in store.walk(f"{store.path}/{name}") for entry in files])
    say("after", temporary())


def main() -> None:
    Client().zen_store
    integration_registry.activate_integrations = lambda: None  # they import torch, pandas, scikit-learn: 4 s
    try_all()
    use_s3(sys.argv[1])
    try_all()


if __name__ == "__main__":
    main()
"""

READ = """
import json, sys
from zenml.client import Client
import skytune.materializers

client = Client()
for identity in sys.argv[1:]:
    version = client.get_artifact_version(identity)
    data = version.load()
    told = [version.artifact.name, type(data).__name__]
    if version.artifact.name == "splits":
        part = data["train"]
        total = sum(part.with_format(None).shuffle(seed=1).map(lambda row: {"n": len(row["input_ids"])})["n"])
        told += [list(data), part.format["type"], part.format["columns"], part.features["labels"].names, len(part),
                 str(part[0]["labels"].dtype), total]
    print("SAID", json.dumps(told))
"""

Said = list[list[Any]]


def run(script: Path, home: Path, *arguments: str) -> Said:
    """Run a script in a fresh process outside the checkout, with a ZenML store of its own; return what it said."""
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "ZENML_REPOSITORY_PATH"},
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "ZENML_CONFIG_PATH": str(home / "config"),
        "ZENML_LOCAL_STORES_PATH": str(home / "stores"),
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_LOGGING_VERBOSITY": "ERROR",
        "ZENML_ENABLE_RICH_TRACEBACK": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2] / "src"), os.getenv("PYTHONPATH")])),
    }
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]


class Ran:
    """What one process said that ran the pipelines, first on this disk, then on S3."""

    def __init__(self, home: Path, endpoint: str) -> None:
        self.home = home
        self.code = home / "code"
        self.code.mkdir()
        (self.code / "materialize.py").write_text(RUN)
        (self.code / "read.py").write_text(READ)
        self.lines = run(self.code / "materialize.py", home, endpoint)

    def of(self, kind: str, word: str) -> Said:
        return [rest for k, w, *rest in self.lines if (k, w) == (kind, word)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str) -> Ran:
    return Ran(tmp_path_factory.mktemp("zenml"), s3_endpoint)


@pytest.fixture(params=["local", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_a_run_uses_these_materializers(ran: Ran, kind: str) -> None:
    room = "skytune.materializers"
    assert {name: used for name, _, used, *_ in ran.of(kind, "output")} == {
        "rows": f"{room}.dataset.DatasetMaterializer",
        "tokenizer": f"{room}.tokenizer.TokenizerMaterializer",
        "splits": f"{room}.dataset.DatasetMaterializer",
        "anything": f"{room}.dataset.DatasetMaterializer",
        "model": f"{room}.model.ModelFolderMaterializer",
        "explicit": f"{room}.dataset.DatasetMaterializer",
    }
    about = {name: (previews, count) for name, *_, previews, count in ran.of(kind, "output")}
    assert about["rows"] == (1, 20) and about["splits"] == (1, 20) and about["explicit"] == (1, 2)
    ((loaded, _, tokens),) = ran.of(kind, "inputs")
    ((names, anything, _),) = ran.of(kind, "look")
    assert (loaded, tokens, names, anything) == ("Dataset", [2, 5, 3], {"test": 5, "train": 15}, "Dataset")


@pytest.mark.slow
def test_local_artifacts_are_used_where_they_lie(ran: Ran) -> None:
    uris = {name: uri for name, uri, *_ in ran.of("local", "output")}
    assert Path(ran.of("local", "inputs")[0][1]).parent == Path(uris["rows"])
    model = Path(ran.of("local", "look")[0][2])
    assert model == Path(uris["model"])
    assert (model / "model.safetensors").samefile(ran.code / "model" / "model.safetensors")
    assert ran.of("local", "during") == [[[]]]


@pytest.mark.slow
def test_downloads_are_gone_when_the_step_ends(ran: Ran) -> None:
    assert all(uri.startswith("s3://bucket/") for _, uri, *_ in ran.of("s3", "output"))
    ((during,),) = ran.of("s3", "during")
    assert len(during) == 3  # one for each input of that step, none of the step before
    assert ran.of("s3", "after") == ran.of("local", "after") == [[[]]]
    assert list((ran.home / "tmp").glob("zenml-*")) == []


@pytest.mark.slow
def test_a_second_run_is_cached(ran: Ran, kind: str) -> None:
    assert ran.of(kind, "again") == [[{"load": "cached", "split": "cached", "look": "cached"}]]


@pytest.mark.slow
def test_no_pickle_lies_under_any_artifact(ran: Ran, kind: str, s3_endpoint: str) -> None:
    folder = ran.home / "stores"
    if kind == "s3":
        folder = ran.home / "objects"
        import boto3

        client = boto3.client(
            "s3", endpoint_url=s3_endpoint, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
        )
        for entry in client.list_objects_v2(Bucket="bucket", Prefix=ran.home.name + "/")["Contents"]:
            if not entry["Key"].endswith("/"):
                (folder / entry["Key"]).parent.mkdir(parents=True, exist_ok=True)
                client.download_file("bucket", entry["Key"], str(folder / entry["Key"]))
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".db", ".log"}]
    assert len([path for path in files if path.suffix == ".arrow"]) == 5
    assert {path.suffix for path in files} == {".arrow", ".json", ".html", ".safetensors"}
    assert not [path for path in files if is_pickle(path)]


@pytest.mark.slow
def test_what_cannot_be_stored_ends_the_run_in_one_line_and_leaves_nothing(ran: Ran, kind: str) -> None:
    refused = dict(ran.of(kind, "refused"))
    assert "transform" in refused["bad"] and "builtins.object" in refused["unknown"]
    assert not any("\n" in message for message in refused.values())
    assert ran.of(kind, "left") == [[[]]]  # not even the first output, which was whole


@pytest.mark.slow
def test_a_fresh_process_in_another_folder_loads_the_artifacts(ran: Ran) -> None:
    wanted = ("rows", "tokenizer", "splits", "model")
    identities = {(k, name): identity for k in ("local", "s3") for name, _, _, identity, *_ in ran.of(k, "output")}
    loaded_all = run(ran.code / "read.py", ran.home, *(identities[k, name] for k in ("local", "s3") for name in wanted))
    kinds = [["rows", "Dataset"], ["tokenizer", "BertTokenizer"], ["splits", "DatasetDict"], ["model", "ModelFolder"]]
    assert [loaded[:2] for loaded in loaded_all] == kinds * 2
    for splits in (loaded_all[2], loaded_all[6]):
        names, form, columns, labels, count, dtype, total = splits[2:]
        assert (names, form, columns, count, dtype) == (["test", "train"], "torch", ["labels"], 15, "torch.int64")
        assert labels == ["negative", "positive"] and 0 < total < 60
    assert list((ran.home / "tmp").iterdir()) == []
