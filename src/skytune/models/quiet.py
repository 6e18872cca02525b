"""Silence for libraries that speak at length: their news is told in one line of our own where it matters."""

import contextlib
import importlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """Switch off the progress bars and warnings of `transformers`, `datasets`, `huggingface_hub` in this block.

    Args:
        libraries: the ones to silence; they are imported if they were not. What was set before comes back after.
    """
    with contextlib.ExitStack() as stack:
        for library in libraries:
            if library == "transformers":
                _quiet_transformers(stack)
            else:
                _quiet_hub_style(stack, library)
        for name in ("httpx", "httpcore"):  # a line for every request, at INFO
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.WARNING)
        yield


def _quiet_transformers(stack: contextlib.ExitStack) -> None:
    log = importlib.import_module("transformers.utils.logging")
    stack.callback(log.set_verbosity, log.get_verbosity())
    log.set_verbosity_error()
    if log.is_progress_bar_enabled():
        stack.callback(log.enable_progress_bar)
        log.disable_progress_bar()


def _quiet_hub_style(stack: contextlib.ExitStack, library: str) -> None:
    log = importlib.import_module(f"{library}.utils.logging")
    bars = importlib.import_module(f"{library}.utils")
    stack.callback(log.set_verbosity, log.get_verbosity())
    log.set_verbosity_error()
    if not bars.are_progress_bars_disabled():
        stack.callback(bars.enable_progress_bars)
        bars.disable_progress_bars()
