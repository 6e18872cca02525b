"""What a worker imports, and the file that it leaves its predictions in."""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.training.outputs import read_predictions, write_predictions

LOOK = """
import json, sys
from skytune.training.worker import _leave_out_libraries
_leave_out_libraries()
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, get_scheduler
from transformers.generation import GenerationMixin
from transformers.utils import is_peft_available, is_scipy_available, is_sklearn_available
names = ("sklearn", "scipy", "pandas", "bitsandbytes", "peft.peft_model")
loaded = [name for name in names if name in sys.modules]
import peft
from transformers.trainer_utils import unwrap_peft_model
config = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
plain = BertForSequenceClassification(BertForSequenceClassification.config_class(**config))
adapted = peft.get_peft_model(plain, peft.LoraConfig(target_modules=["query"]))
there = [unwrap_peft_model(adapted) is plain, unwrap_peft_model(plain) is plain]
print(json.dumps([loaded, is_sklearn_available(), is_scipy_available(), is_peft_available(), *there]))
"""


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_a_worker_leaves_out_what_only_text_generation_boxes_and_a_trainer_want() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], True, True, True, True, True]


def test_a_worker_imports_no_compiler_and_no_cut_up_tensors_before_it_needs_them() -> None:
    """They take a second and more of every start, on a slow CPU several."""
    code = """
import sys
from skytune.training.worker import import_libraries
import_libraries()
names = ("torch.distributed.tensor", "torch._dynamo", "torch._inductor", "triton", "sympy", "datasets", "deepspeed")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_rows_and_predictions_cost_no_pandas_and_an_optimizer_no_trainer(tmp_path: Path) -> None:
    """Arrow imports pandas for most of its ways from and to NumPy; transformers' Trainer has names of what decays."""
    rows = pa.table({"input_ids": pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int32())), "labels": [0, 1, 0]})
    (tmp_path / "rows").mkdir()
    with pa.OSFile(str(tmp_path / "rows/data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)
    code = f"""
import sys
from pathlib import Path
import numpy as np
import torch
from skytune.config import OptimizerConfig
from skytune.data.batches import TokenTable
from skytune.training.outputs import write_predictions
from skytune.training.parameter_groups import parameter_groups
table = TokenTable.open(Path({str(tmp_path / "rows")!r}))
write_predictions(Path({str(tmp_path / "out.arrow")!r}), np.arange(3), table.labels, np.ones((3, 2), dtype=np.float32))
parameter_groups(torch.nn.Linear(2, 2), OptimizerConfig())
print("pandas" in sys.modules, "transformers.trainer" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@given(
    numbers=st.lists(st.integers(-(2**40), 2**40), max_size=9),
    classes=st.integers(1, 4),
    labelled=st.booleans(),
    rows=st.randoms(use_true_random=False),
)
def test_predictions_come_back(
    numbers: list[int], classes: int, labelled: bool, rows: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "predictions.arrow"
    order = np.array(rows.sample(range(len(numbers)), len(numbers)), dtype=np.int64)
    logits = np.asarray([[row + step / 8 for step in range(classes)] for row in range(len(numbers))], dtype=np.float32)
    logits = logits.reshape(len(numbers), classes)
    write_predictions(file, order, np.array(numbers, dtype=np.int64) if labelled else None, logits)
    found = read_predictions(file)
    expected = np.array(numbers, dtype=np.int64)[order] if labelled else np.full(len(numbers), -1)
    assert found[0].tolist() == order.tolist() and found[1].tolist() == expected.tolist()
    assert found[2].reshape(logits.shape).tolist() == logits.tolist()
    schema = pa.ipc.open_stream(pa.memory_map(str(file))).schema
    assert schema.equals(pa.schema({"row": pa.int64(), "label": pa.int64(), "logits": pa.list_(pa.float32())}))
