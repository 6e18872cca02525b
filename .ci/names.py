"""The project's word list: names that have a better one in the field, classes of one name, keys by former names.

python .ci/names.py      part of `make lint`; prints file:line and the word to use
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from skytune.config.renamed import KEYS  # noqa: E402

RETIRED = {
    "Arena": "FlatParameters",
    "AtOnce": "EvalBatchSize",
    "Attempts": "OomRetry",
    "BenchmarkConfig": "StudyConfig",
    "Checkpoints": "CheckpointCallback",
    "EagerSteps": "EagerStep",
    "Finished": "RunSummary",
    "Following": "JobMonitor",
    "Gathered": "MultiNodeWorkerGroup",
    "Gathering": "MultiNodeWorkerGroup",
    "HandingOn": "BestCheckpoint",
    "Notice": "PreemptionListener",
    "OnFailure": "OnSaveError",
    "Outcome": "JobResult",
    "PackedSteps": "PackedTrainStep",
    "Passing": "S3Transfer",
    "PeerEnded": "PeerFailed",
    "Replicated": "DataParallelBase",
    "Snapshot": "TrainState",
    "Steps": "TrainStep",
    "Taken": "StepResult",
    "Team": "WorkerGroup",
    "Together": "ShardedUpdate",
    "Told": "StopRequested",
    "Trained": "TrainResult",
    "World": "DistContext",
    "bring_together": "gather_full_state",
    "own_files": "private_state_files",
    "left_behind": "existing_results",
    "place_to_resume": "parse_resume_path",
    "tell_memory": "memory_line",
    "whole_config": "run_config",
    "worn_out": "retries_exhausted",
}
"""Identifiers: the one that is not used any more, and the one to use."""

VAGUE = {
    "mine": "what it is: own_rank, own_rows, is_best ...",
    "said": "what it is: message, output, lines, typed, listing ...",
    "theirs": "what it is: peers, other, wanted ...",
}
"""Identifiers that name nothing; in tests neither."""


def retired(text: str, words: dict[str, str], where: Path) -> list[str]:
    """Return a line for each identifier of a module that is one of `words`."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        f"{where}:{token.start[0]}: {token.string}: say {words[token.string]}"
        for token in tokens
        if token.type == tokenize.NAME and token.string in words
    ]


def problems() -> list[str]:
    """Return a line for each name that is not to be used."""
    found, classes = [], defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found += retired(path.read_text(encoding="utf-8"), VAGUE, path.relative_to(ROOT))
    for path in sorted((ROOT / "src").rglob("*.py")):
        text, where = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        found += retired(text, RETIRED | VAGUE, where)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and re.match("_*refuse(_|$)", node.name):
                found.append(f"{where}:{node.lineno}: {node.name}: say check_...")
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{where}:{node.lineno}")
    for name, places in classes.items():
        if len(places) > 1:
            found.append(f"class {name} is defined {len(places)} times: {', '.join(places)}")
    for path in sorted([*(ROOT / "configs").rglob("*.yaml"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for old, new in KEYS.items():
                if f"{old}." in line.split() or any(w.startswith((f"{old}=", f"{old}.")) for w in line.split()):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {old}: say {new}")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "names: ok")
    sys.exit(bool(lines))
