"""How GPUs are counted without torch. There is none here: the driver's library is a stand-in that counts as it is told,
and so is what torch says of its own build; `benchmarks/gpu_check.py` compares with torch where there are GPUs."""

import ctypes
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from skytune.launch import gpus


class Driver:
    """NVIDIA's management library."""

    def __init__(self, count: int, fails: bool = False) -> None:
        self.count, self.fails = count, fails

    def nvmlInit(self) -> int:
        return 999 if self.fails else 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.count
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A machine with a driver, and torch as it is asked for; importing torch is told."""

    def make(driver: Driver | None, visible: str | None = None, built: str = "cuda = '13.0'") -> None:
        (tmp_path / "device").touch()
        (tmp_path / "version.py").write_text(built + "\n")
        spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))

        def load(name: str) -> Driver:
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(gpus, "DRIVER_FILES", (str(tmp_path / "device"),))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("0", 1), ("1,0", 2), ("3,2,1,0", 4), ("0,4,1", 1), ("9", 0)],
)
def test_the_driver_counts_as_torch_does(machine: Any, visible: str | None, count: int) -> None:
    machine(Driver(4), visible)
    assert gpus.count_gpus() == count


@pytest.mark.parametrize("visible", ["", "-1", "GPU-8932f937", "MIG-7", "0,0", "1gpu,2", "0, 1"])
def test_torch_is_asked_of_names_that_are_no_numbers(machine: Any, visible: str) -> None:
    machine(Driver(4), visible)
    with pytest.raises(ImportError):
        gpus.count_gpus()


@pytest.mark.parametrize("built", ["cuda = None", "cuda = None\nhip = '6.4'"])
@pytest.mark.parametrize("driver", [Driver(4), None])
def test_torch_is_asked_where_it_is_built_for_something_else(machine: Any, built: str, driver: Driver | None) -> None:
    machine(driver, built=built)
    with pytest.raises(ImportError):
        gpus.count_gpus()


@pytest.mark.parametrize("driver", [None, Driver(4, fails=True), object()])
def test_torch_is_asked_where_the_driver_does_not_answer(machine: Any, driver: Any) -> None:
    machine(driver)
    with pytest.raises(ImportError):
        gpus.count_gpus()


def test_without_a_driver_there_is_none(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(Driver(4))
    monkeypatch.setattr(gpus, "DRIVER_FILES", ("/nonexistent",))
    assert gpus.count_gpus() == 0
