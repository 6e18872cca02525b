"""What counts as a change of a step's code: what its work imports, as a syntax tree; the user's modules; versions."""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skytune.config import RunConfig, from_dict
from skytune.models.hashing import hash_target
from skytune.steps import fingerprints as module
from skytune.steps.fingerprints import PACKAGES, ROOTS, code_hash, fingerprints, versions

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes a file of the user's own, on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def save(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    yield save
    for name in set(sys.modules) - before:
        if name.startswith("fp_"):
            del sys.modules[name]


BASE = '''"""What it is for."""

LIMIT = 3


class Thing:
    """A thing."""

    def value(self, times=2):
        """Return it."""
        return times * LIMIT  # a remark


async def later():
    """Later."""
'''


@pytest.mark.parametrize(
    "edited",
    [
        BASE.replace("What it is for.", "Something else."),
        BASE.replace("A thing.", "Another thing."),
        BASE.replace("Return it.", "Hand it back,\n        on two lines."),
        BASE.replace("Later.", "Much later."),
        BASE.replace("  # a remark", ""),
        BASE.replace("LIMIT = 3\n", "# a number\n\nLIMIT = 3\n\n\n"),
        BASE.replace("times * LIMIT", "(times\n                * LIMIT)"),
    ],
    ids=["module", "class", "function", "async", "comment", "empty lines", "layout"],
)
def test_words_and_layout_do_not_count(write: Write, edited: str) -> None:
    assert edited != BASE
    write("fp_words.py", BASE)
    before = code_hash(("fp_words",), everything=True)
    write("fp_words.py", edited)
    assert code_hash(("fp_words",), everything=True) == before


@pytest.mark.parametrize(
    "edited",
    [
        BASE.replace("times=2", "times=3"),
        BASE.replace("LIMIT = 3", "LIMIT = 4"),
        BASE.replace("times * LIMIT", "times + LIMIT"),
        BASE.replace("def value", "def amount"),
        BASE + "\nMESSAGE = 'a string that is no docstring'\n",
    ],
    ids=["default", "constant", "operator", "name", "addition"],
)
def test_code_counts(write: Write, edited: str) -> None:
    write("fp_code.py", BASE)
    before = code_hash(("fp_code",), everything=True)
    write("fp_code.py", edited)
    assert code_hash(("fp_code",), everything=True) != before


@pytest.mark.parametrize(
    "line",
    [
        "import fp_helper.deep",
        "from fp_helper import deep",
        "from fp_helper.deep import VALUE",
        "from fp_helper.deep import VALUE as v",
        "def f():\n    from fp_helper import deep",
        "if False:\n    import fp_helper.deep as d",
        "try:\n    from fp_helper.deep import VALUE\nexcept ImportError:\n    VALUE = 0",
    ],
)
def test_imports_are_followed_wherever_they_stand(write: Write, line: str) -> None:
    write("fp_helper/__init__.py", "")
    write("fp_helper/deep.py", "VALUE = 1\n")
    write("fp_start.py", line + "\n")
    before = code_hash(("fp_start",), everything=True)
    write("fp_helper/deep.py", "VALUE = 2\n")
    assert code_hash(("fp_start",), everything=True) != before


def test_relative_imports_and_circles(write: Write) -> None:
    write("fp_pack/__init__.py", "from .a import A\n")
    write("fp_pack/a.py", "from . import b\nA = 1\n")
    write("fp_pack/b.py", "from .sub.c import C\nfrom .a import A\n")
    write("fp_pack/sub/__init__.py", "")
    write("fp_pack/sub/c.py", "from ..a import A\nfrom ...nowhere import X\nC = 1\n")
    before = code_hash(("fp_pack",), everything=True)
    write("fp_pack/sub/c.py", "from ..a import A\nC = 2\n")
    assert code_hash(("fp_pack",), everything=True) != before


def test_libraries_and_what_is_not_imported_do_not_count(write: Write) -> None:
    write("fp_user.py", "import json\nimport numpy\nimport no_such_module\n")
    write("fp_other.py", "X = 1\n")
    assert set(module._closure(("fp_user",), True)) == {"fp_user"}
    assert set(module._closure(("fp_user",), False)) == set()  # only this package's own, unless asked


def test_the_closure_of_every_step() -> None:
    """Imports inside functions are followed: the worker's session imports the models' room only there."""
    closures = {step: set(module._closure(roots, False)) for step, roots in ROOTS.items()}
    assert {"skytune.data.prepare", "skytune.data.splits", "skytune.models.tokenizer"} <= closures["load_data"]
    assert {"skytune.training.loop", "skytune.data.order", "skytune.models.build"} <= closures["train_model"]
    assert {"skytune.report.page", "skytune.tasks.metrics"} <= closures["evaluate_model"]
    assert "skytune.data.prepare" not in closures["train_model"]  # other rows are seen by their own fingerprint
    for step, closure in closures.items():
        rooms = {name.split(".")[1] for name in closure if "." in name}
        assert not rooms & {"config", "job", "stacks", "steps", "pipelines", "materializers"}, step
    assert not {name for name in closures["load_data"] if name.startswith("skytune.training")}
    assert "skytune.training.loop" not in closures["evaluate_model"]  # a changed loop rescores nothing


def test_each_step_has_its_own_hash_and_versions() -> None:
    config = from_dict(RunConfig, {})
    found = {step: fingerprints(step, config) for step in ROOTS}
    assert len({entry["code"] for entry in found.values()}) == 3
    assert all(set(entry) == {"code", "versions"} for entry in found.values())
    assert "datasets==" in found["load_data"]["versions"] and "torch" not in found["load_data"]["versions"]
    assert "torch==" in found["train_model"]["versions"]
    assert fingerprints("train_model", config) == found["train_model"]


def test_versions_are_those_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    assert versions(("pyarrow",)) == f"pyarrow=={pyarrow.__version__}"
    assert versions(("no-such-package-here",)) == "no-such-package-here absent"
    before = versions(PACKAGES["load_data"])
    real = module.metadata.version
    monkeypatch.setattr(module.metadata, "version", lambda name: "99" if name == "pyarrow" else real(name))
    assert versions(PACKAGES["load_data"]) != before


TRAINS, EVALUATES = {"train_model"}, {"evaluate_model"}


@pytest.mark.parametrize(
    ("groups", "steps"),
    [
        ({"model": {"_target_": "fp_mine.Thing"}}, {"load_data", "train_model"}),
        ({"data": {"_target_": "fp_mine.Thing"}}, {"load_data"}),
        ({"optimizer": {"_target_": "fp_mine.Thing"}}, TRAINS),
        ({"schedule": {"_target_": "fp_mine.Thing"}}, TRAINS),
        ({"callbacks": {"a": {"_target_": "fp_mine.Thing"}}}, TRAINS),
        ({"eval": {"extra_metrics": {"a": {"_target_": "fp_mine.Thing"}}}}, EVALUATES),
        (
            {"eval": {"extra_metrics": {"a": {"_target_": "fp_mine.Thing"}}}, "checkpoint": {"metric": "a_part"}},
            TRAINS | EVALUATES,
        ),
        ({"eval": {"metrics": ["accuracy", "SELF/fp_below.py"]}}, EVALUATES),
        ({"plugins": ["fp_mine"]}, set(ROOTS)),
        ({"optimizer": {"_target_": "fp_mine.Thing.value"}}, TRAINS),
        ({"optimizer": {"_target_": "fp_folder.inner.Thing"}}, TRAINS),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_module_of_the_users_own_counts(
    write: Write, tmp_path: Path, groups: dict[str, object], steps: set[str]
) -> None:
    """For the steps that call it, and no others."""
    write("fp_mine.py", "import fp_below\n" + BASE)
    write("fp_folder/__init__.py", "")
    write("fp_folder/inner.py", "import fp_below\nraise RuntimeError('nothing of the user\\'s is run for this')\n")
    write("fp_below.py", "X = 1\n")
    config = from_dict(RunConfig, json.loads(json.dumps(groups).replace("SELF", str(tmp_path))))

    def changes(text: str) -> set[str]:
        before = {step: fingerprints(step, config) for step in ROOTS}
        write("fp_below.py", text)
        return {step for step in ROOTS if fingerprints(step, config) != before[step]}

    assert changes("# a remark\nX = 1\n'words'\n") == set()
    assert changes("X = 2\n") == steps
    assert all(fingerprints(step, config)["code"] == fingerprints(step, RunConfig())["code"] for step in ROOTS)


def test_what_a_target_means_counts_not_how_it_is_written(write: Write) -> None:
    """It names the run: with the bytes of the file, a remark would lose the checkpoints."""

    def found(text: str) -> str:
        write("fp_target.py", text)
        return hash_target("fp_target.Thing", {"a": 1}, "model._target_")

    before = found(BASE)
    assert found(BASE.replace("A thing.", "Another.").replace("  # a remark", "")) == before
    assert found(BASE.replace("times=2", "times=3")) != before


@pytest.mark.parametrize("step", ROOTS)
def test_the_docstring_of_a_step_does_not_count_its_code_does(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(module.PACKAGE, tmp_path / "skytune", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "skytune")
    file = tmp_path / "skytune" / "steps" / f"{step}.py"
    before, text = fingerprints(step, RunConfig()), file.read_text()
    file.write_text(text.replace('    """', '    """In other words: ', 1) + "# a remark\n")
    os.utime(file, ns=(1, 1))
    assert fingerprints(step, RunConfig()) == before
    file.write_text(text + "ADDED = 1\n")
    os.utime(file, ns=(2, 2))
    assert fingerprints(step, RunConfig()) != before


def test_the_package_is_parsed_once_and_what_changed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "home"))
    shutil.copytree(module.PACKAGE, tmp_path / "skytune", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "skytune")
    parsed: list[str] = []
    parse = module._parsed
    monkeypatch.setattr(module, "_parsed", lambda path, name: parsed.append(name) or parse(path, name))

    def once() -> tuple[str, list[str]]:
        module._memory.cache_clear()  # as in a process of its own
        parsed.clear()
        return code_hash(ROOTS["train_model"]), list(parsed)

    before, first = once()
    assert len(first) > 50 and once() == (before, [])
    (tmp_path / "skytune" / "training" / "loop.py").open("a").write("\nADDED = 1\n")
    after, again = once()
    assert after != before and again == ["skytune.training.loop"] and once() == (after, [])
    (memory,) = (tmp_path / "home" / "hashes").glob("code-*.json")
    memory.write_text('{"' + next(iter(json.loads(memory.read_text()))) + '": 3')
    assert once()[0] == after, "what cannot be read is as good as nothing"
