"""What the commands beside `src/run.py` have in common: how their help looks, and that an error is one line."""

import argparse
import signal
import sys
from collections.abc import Callable

import skytune

from ..common.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED
from ..common.stop_request import Interruption
from ..common.text import first_line
from ..config import UserError


def _form(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)


def make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a command's parser, with `--version`."""
    made = argparse.ArgumentParser(prog=prog, formatter_class=_form, epilog=examples, description=description)
    made.add_argument("--version", action="version", version=f"skytune {skytune.__version__}")
    return made


def with_subcommands(parser: argparse.ArgumentParser) -> Callable[[str, str], argparse.ArgumentParser]:
    """Return what adds a subcommand, by its name and what it does in one phrase."""
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", prog=parser.prog
    )

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=_form)
        made.add_argument("--traceback", action="store_true", help="show the traceback of an error")
        return made

    return command


def run_command(
    run: Callable[[argparse.Namespace], int],
    words: argparse.Namespace,
    *,
    interrupted: str = "interrupted",
    install: str = "`make install`",
) -> int:
    """Return the exit code of `run(words)`; an error is one line, except with `--traceback`.

    Args:
        interrupted: what is said after Ctrl-C.
        install: how a package that is missing is had.
    """
    request = Interruption([signal.SIGINT])
    try:
        with request:
            return run(words)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if words.traceback and not request.asked_by:
            raise
        from ..config.scrubbing import scrub

        if not request.asked_by or told_beside(error):
            print(f"error: {scrub(in_words(error, install, '--traceback shows where'))}", file=sys.stderr)
        if not request.asked_by:
            return EXIT_ERROR
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED


def told_beside(error: Exception) -> bool:
    """Return whether an error after a signal is told beside it: one of ours (machines that could not be taken down),
    and not what a library made of the signal."""
    return isinstance(error, UserError) and "KeyboardInterrupt" not in f"{error!r} {error.__cause__!r}"


def in_words(error: Exception, install: str, more: str) -> str:
    """Return an error as one line; one that nobody foresaw says where to find more.

    Args:
        install: how a package that is missing is had.
        more: what shows the traceback.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"'{error.name}' is not installed in this Python ({sys.executable}): {install}"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}; {more}"
    return f"{type(error).__name__}: {first_line(error)} (unexpected; {more})"
