"""A folder or a store of somebody else's: whatever its files name, `pipeline=evaluate` and `resume=` run none of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.run_card import Recipe, write_recipe
from skytune.checkpoint.store import Store
from skytune.config import RunConfig, to_dict

MARK = "hostile_code"

HOOK = f"""
import os, sys

def look(event, args):
    # What is imported, run as a program, or executed as code.
    if event in ("import", "exec", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"):
        what = args[0].co_filename if event == "exec" and hasattr(args[0], "co_filename") else repr(args)
        if "{MARK}" in what:
            with open(os.environ["HOSTILE_LOG"], "a") as file:
                print(event, what, file=file)

sys.addaudithook(look)
"""


@pytest.fixture(scope="module")
def place(new_checkout: Callable[..., Any]) -> Any:
    """A checkout whose processes write down what they run of hostile code, which lies where they would find it."""
    found = new_checkout(warm=True)
    hook = found.source / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    found.log = found.home / "ran.txt"
    found.env |= {"PYTHONPATH": str(hook), "HOSTILE_LOG": str(found.log)}
    code = f"open({str(found.log)!r}, 'a').write('imported')\ndef run(*_, **__): ...\nclass Net: on_step_end = run\n"
    (found.home / f"{MARK}.py").write_text(code)
    return found


def refused(place: Any, *words: str) -> str:
    done = place.run(*words, "compute=cpu")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert not place.log.exists(), place.log.read_text()
    assert "unexpected" not in done.err and "Traceback" not in done.err
    return str(done.err)


DEEP = "[" * 50_000
SHELL = {"command": f"touch {MARK}"}
FOLDERS: dict[str, tuple[str, Any, str]] = {
    "a command": ("skytune_model.json", {"target": "os.system", "args": SHELL, "labels": ["a", "b"]}, "os.system"),
    "own code": ("skytune_model.json", {"target": f"{MARK}.Net", "args": {}, "labels": ["a", "b"]}, f"{MARK}.Net"),
    "deep": ("skytune_model.json", DEEP, "skytune_model.json"),
    "auto_map": ("config.json", {"auto_map": {"AutoConfig": f"{MARK}.Net"}}, "auto_map"),
    "tokenizer": ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [f"{MARK}.Net", None]}}, "auto_map"),
    "deep config": ("config.json", DEEP, "config.json"),
    "deep tokenizer": ("tokenizer.json", DEEP, "tokenizer"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_nothing_of_a_models_folder_is_run(
    place: Any, tiny_model: Path, tmp_path: Path, reviews: Path, case: str
) -> None:
    name, values, message = FOLDERS[case]
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    trained = {**json.loads((folder / "config.json").read_text()), "architectures": ["BertForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps({**trained, "id2label": {0: "schlecht", 1: "mittel", 2: "gut"}}))
    (folder / "job.json").write_text(json.dumps({"config": {"plugins": [MARK]}, "paths": [str(place.home)]}))
    shutil.copy(place.home / f"{MARK}.py", folder)
    if isinstance(values, dict) and name != "skytune_model.json":
        values = {**json.loads((folder / name).read_text()), **values}
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values))
    data = ["data=files", f"data.train={reviews}", "data.text=Satz", "data.label=Urteil"]
    assert message in refused(place, "pipeline=evaluate", f"checkpoint={folder}", *data)


STORES: dict[str, tuple[dict[str, Any], str]] = {
    "data": ({"data": {"_target_": f"{MARK}.run", "source": "target"}}, f"data._target_={MARK}.run"),
    "a command": ({"data": {"_target_": "os.system", "source": "target", "args": SHELL}}, "data._target_=os.system"),
    "callbacks": ({"callbacks": {"x": {"_target_": f"{MARK}.Net"}}}, f"callbacks.x._target_={MARK}.Net"),
    "plugins": ({"plugins": [MARK]}, f"plugins=[{MARK}]"),
    "product": ({"schedule": {"_target_": "skytune.job.write_json"}}, "schedule._target_=skytune.job.write_json"),
}


@pytest.mark.parametrize("case", [*STORES, "deep", "names", "manifest"])
def test_nothing_of_a_store_is_run(place: Any, tmp_path: Path, case: str) -> None:
    groups, message = STORES.get(case, ({}, ""))
    values = to_dict(RunConfig(name="theirs"))
    for key, value in groups.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    store = Store.open(str(tmp_path / "store"), "theirs-0123456789ab")
    write_recipe(store, Recipe(config=values, fingerprints={"weights": "w"}, new_parameters=[], written_by="1"), {})
    store.write(1, {"model.safetensors": b"w"})
    run = tmp_path / "store" / "theirs-0123456789ab"
    words = [f"resume={tmp_path}/store"]
    if case == "deep":
        (run / "run.json").write_text(DEEP)
        message = "run.json is damaged"
    elif case == "names":
        whole = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**whole, "files": {"../x": {"size": 1, "sha256": "0"}}}))
        message = "run.json is damaged"
    elif case == "manifest":
        (run / "run.json").unlink()
        (run / "step-00000001" / "manifest.json").write_text(DEEP)
        words, message = [f"resume={run}/step-00000001", "max_steps=1", "data.max_rows=64"], "manifest.json is damaged"
    assert message in refused(place, *words)
