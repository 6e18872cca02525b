"""The rules of the house that no linter knows: each room small, each name once, no circle, no hidden import."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((SOURCE / "skytune").rglob("*.py"))}


def test_no_folder_holds_more_than_25_modules() -> None:
    sizes: dict[Path, int] = defaultdict(int)
    for path in TREES:
        sizes[path.parent] += 1
    assert {str(folder.relative_to(SOURCE)): count for folder, count in sizes.items() if count > 25} == {}


def test_every_package_says_what_it_is_for() -> None:
    silent = [str(path) for path, tree in TREES.items() if path.name == "__init__.py" and not ast.get_docstring(tree)]
    assert silent == []


def test_no_two_modules_import_each_other() -> None:
    graph = grimp.build_graph("skytune")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_import_is_hidden_in_a_text() -> None:
    hidden = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith("skytune")
    ]
    assert hidden == []
