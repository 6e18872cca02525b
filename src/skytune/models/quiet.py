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
            log = importlib.import_module(f"{library}.utils.logging")
            if log.get_verbosity() < log.ERROR:  # a change of a level has every logger look again
                stack.callback(log.set_verbosity, log.get_verbosity())
                log.set_verbosity_error()
            if library == "transformers":
                shown, show, hide = log.is_progress_bar_enabled(), log.enable_progress_bar, log.disable_progress_bar
            else:
                bars = importlib.import_module(f"{library}.utils")
                shown = not bars.are_progress_bars_disabled()
                show, hide = bars.enable_progress_bars, bars.disable_progress_bars
            if shown:
                stack.callback(show)
                hide()
        for name in ("httpx", "httpcore"):  # a line for every request, at INFO
            logger = logging.getLogger(name)
            if logger.level < logging.WARNING:
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.WARNING)
        yield
