"""Which libraries a module drags in: the workers' rooms run where there is no orchestrator, no cloud and no Hydra."""

import subprocess
import sys

import pytest

ORCHESTRATOR = ("zenml", "sky", "hydra", "hydra_zen", "omegaconf")
HEAVY = ("torch", "transformers", "datasets", "accelerate", "numpy", "pyarrow")


def loaded(modules: str, *blocked: str) -> set[str]:
    """Import modules in a fresh process in which `blocked` cannot be imported; return the top-level packages loaded."""
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport {modules}\n"
        "print(*sorted({name.split('.')[0] for name, found in sys.modules.items() if found is not None}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "modules",
    [
        "skytune.training, skytune.training.worker, skytune.job, skytune.config.targets, skytune.config.help",
        "skytune.data, skytune.models, skytune.launch, skytune.training.trainer, skytune.training.loop",
    ],
)
def test_workers_need_no_orchestrator(modules: str) -> None:
    # Blocked as well, so that a module that could do without does not hide one that imports it where it is there.
    found = loaded(modules, *ORCHESTRATOR)
    assert "skytune" in found
    assert not found & set(ORCHESTRATOR)


def test_they_do_not_import_it_where_it_is_installed() -> None:
    found = loaded(
        "skytune.training, skytune.training.worker, skytune.training.trainer, skytune.data, skytune.models, skytune.job"
    )
    assert not found & set(ORCHESTRATOR)


def test_config_and_worker_start_light() -> None:
    """What `--help` imports, and what a worker imports before it has its log file."""
    found = loaded("skytune.config, skytune.config.help, skytune.config.targets, skytune.job, skytune.training.worker")
    assert not found & {*ORCHESTRATOR, *HEAVY}
