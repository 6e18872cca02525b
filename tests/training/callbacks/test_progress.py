"""The live bar: what others print stays readable, and a frame that is too long for the window is cut."""

import io
import logging
import sys

import pytest

from skytune.training.callbacks.progress import ERASE, NO_WRAP, WRAP, Frames, Screen


def test_text_takes_the_place_of_the_bar() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    frames = Frames(screen)
    frames.write("\r 50%|#####     |")
    screen.write("validated")
    screen.write(" well\n")
    frames.write("\r 60%|######    |")
    assert stream.getvalue() == (
        f"{NO_WRAP}\r 50%|#####     |{WRAP}{ERASE}validated well\n{NO_WRAP}\r 60%|######    |{WRAP}"
    )


def test_nothing_is_erased_after_the_last_frame() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    Frames(screen).write("\r100%|##########|\n")
    screen.write("predicted\n")
    assert ERASE not in stream.getvalue()


def test_prints_and_log_lines_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    log = logging.getLogger("skytune")
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    try:
        screen = Screen(stream).install()
        assert sys.stdout is screen and handler.stream is screen
        for say in (print, log.warning):
            Frames(screen).write("\r 10%|#")
            say("hello")
        screen.remove()
        assert sys.stdout is stream and handler.stream is stream
    finally:
        log.removeHandler(handler)
    assert stream.getvalue().count(f"{ERASE}hello\n") == 2
