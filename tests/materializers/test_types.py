import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from skytune.materializers import MATERIALIZERS
from skytune.materializers.types import ByName, named_type

NAMED = [kind for materializer in MATERIALIZERS for kind in materializer.ASSOCIATED_TYPES if hasattr(kind, "path")]


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.path)
def test_every_named_class_exists_under_that_name(kind: Any) -> None:
    module, _, name = kind.path.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    pytest.importorskip("torch")
    found = getattr(import_module(module), name)
    assert issubclass(found, kind)
    assert issubclass(type("Sub", (found,), {}), kind)
    assert f"{found.__module__}.{found.__qualname__}" == kind.path


def test_other_classes_do_not_count() -> None:
    kind = named_type("collections.OrderedDict")
    from collections import Counter, OrderedDict

    assert isinstance(OrderedDict(), kind) and issubclass(kind, kind)
    assert not issubclass(Counter, kind) and not issubclass(kind, OrderedDict)


def test_names_come_before_classes() -> None:
    table = ByName({int: "by class", str: "by class"}, {"builtins.int": "by name"})
    assert table.get(int) == "by name" and table.get(str) == "by class"
    assert table.get(float) is None and table.get(float, 1) == 1


def test_importing_the_room_imports_no_heavy_library() -> None:
    code = (
        "import sys, skytune.materializers as m; m.register(); "
        "print([n for n in ('torch', 'datasets', 'transformers', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
