"""Where compiled code is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skytune.config.folders import keep_compiled

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def test_compiled_code_is_kept_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless the environment says where, or nothing can be written there."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "file" / "home"))
    keep_compiled()
    assert "TRITON_CACHE_DIR" not in os.environ
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    keep_compiled()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "new" / "compiled" / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere" and not (tmp_path / "new" / "compiled").exists()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


def test_workers_find_it_though_the_command_has_imported_torchs_compiler(tmp_path: Path) -> None:
    """Importing that names a folder below /tmp, for all processes that are started later."""
    code = (
        "from pathlib import Path\nfrom skytune.stacks import environment\nenvironment.prepare(Path('src'))\n"
        "import torch._dynamo\nfrom skytune.launch.processes import environment\n"
        f"print(*(environment(1, 1)[name] for name in {NAMES}))"
    )
    env = {key: value for key, value in os.environ.items() if key not in NAMES} | {"SKYTUNE_HOME": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(tmp_path / "compiled" / name) for name in ("inductor", "triton")]
