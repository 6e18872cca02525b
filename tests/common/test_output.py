"""Output survives its reader, a stdout that is closed, and characters that its encoding lacks."""

import os
import subprocess
import sys

import pytest

CODE = "from skytune.common.output import make_lasting; make_lasting(); import sys, subprocess; "


def run(code: str, words: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the code in a shell, its own exit code last on standard error."""
    line = f"{{ {sys.executable} -c '{CODE}{code}'; echo code $? >&3; }} {words}"
    return subprocess.run(["bash", "-c", f"exec 3>&2; {line}"], capture_output=True, text=True, check=False)


def test_a_reader_that_leaves_ends_nothing() -> None:
    done = run('[print("line", i) for i in range(100000)]; sys.__stdout__.buffer.write(b"x"); sys.exit(7)', "| head -1")
    assert (done.stdout, done.stderr) == ("line 0\n", "code 7\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_nothing_and_their_numbers_are_not_given_away(closed: str) -> None:
    code = 'print("x"); print("y", file=sys.stderr); f = open("/dev/zero"); subprocess.run(["true"], check=True); '
    done = run(code + "sys.exit(f.fileno())", closed)
    assert int(done.stderr.split()[-1]) > 3


def test_every_character_is_shown() -> None:
    line = [sys.executable, "-c", CODE + 'print("\u00e9")']
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "\\xe9\n"
