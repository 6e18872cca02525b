"""What a worker imports."""

import importlib.util
import json
import subprocess
import sys

import pytest

LOOK = """
import json, sys
from skytune.training.worker import _leave_out_sklearn
_leave_out_sklearn()
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification
from transformers.generation import GenerationMixin
from transformers.utils import is_sklearn_available
print(json.dumps([name in sys.modules for name in ("sklearn", "pandas")] + [is_sklearn_available()]))
"""


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_a_worker_leaves_out_what_only_text_generation_wants() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, False, True]
