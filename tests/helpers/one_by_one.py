"""Runs `src/stack.py` in this process once a line of its input: importing ZenML takes longer than any of the commands.

python one_by_one.py SRC     then {"words": [...], "env": {...}} a line, answered by {"code", "out", "err"}

The words `python CODE` run a piece of Python instead.
"""

import contextlib
import importlib.util
import io
import json
import os
import sys
import traceback

SRC = sys.argv[1]
spec = importlib.util.spec_from_file_location("stack_command", f"{SRC}/stack.py")
assert spec is not None and spec.loader is not None
command = importlib.util.module_from_spec(spec)
spec.loader.exec_module(command)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever writes there by itself must not come between the answers
for text in sys.stdin:
    asked = json.loads(text)
    before = dict(os.environ)
    os.environ.update(asked["env"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if asked["words"][0] == "python":
                exec(asked["words"][1], {})
                code = 0
            else:
                code = command.main(asked["words"])
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = -1
            traceback.print_exc()
    os.environ.clear()
    os.environ.update(before)
    answers.write(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}) + "\n")
    answers.flush()
