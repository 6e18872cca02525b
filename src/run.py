"""The command: compose a configuration, choose a pipeline, run it, say where to look.

    python src/run.py --help
"""

import os
import sys
from pathlib import Path

import skytune  # found beside this file, whatever else is installed

SOURCE = Path(__file__).resolve().parent
# From here on the folder of this file comes last: a file here named like a library must not hide it.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE] + [str(SOURCE)]

from skytune.config import ConfigError, RunConfig, UserError  # noqa: E402

EXIT_OK, EXIT_ERROR, EXIT_INTERRUPTED = 0, 1, 130
CONFIGS = SOURCE.parent / "configs"


def main(argv: list[str]) -> int:
    """Run the command; return its exit code."""
    debug = any(word.startswith("debug=") for word in argv)
    try:
        return _main(argv)
    except UserError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted: the worker processes have ended; the same command starts again", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        if debug:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}; debug= shows the traceback", file=sys.stderr)
        return EXIT_ERROR
    except Exception as error:
        if debug:
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"error: {type(error).__name__}: {first} (unexpected; debug= shows the traceback)", file=sys.stderr)
        return EXIT_ERROR


def _main(argv: list[str]) -> int:
    words, folder = _options(list(argv))
    if words is None:
        return EXIT_OK
    _load_dotenv()
    from skytune.config.store import compose_run, to_yaml

    show = "--cfg" in words
    config = compose_run(CONFIGS, [word for word in words if word != "--cfg"], folder)
    if show:
        print(to_yaml(config), end="")
        return EXIT_OK
    _refuse_launchers()
    return _run(config)


def _options(words: list[str]) -> tuple[list[str] | None, Path | None]:
    """Answer `--help` and `--version` (then no words are left), take `--config-dir` out, refuse other options."""
    folder = None
    if "--config-dir" in words:
        at = words.index("--config-dir")
        if at + 1 >= len(words):
            raise ConfigError("--config-dir needs a folder")
        folder = Path(words[at + 1])
        del words[at : at + 2]
    if {"-h", "--help"} & set(words):
        from skytune.config.docs import help_text
        from skytune.config.targets import import_plugins

        plugins = [word.partition("=")[2].strip("[]").split(",") for word in words if word.startswith("plugins=")]
        import_plugins([name for group in plugins for name in group])
        print(help_text(CONFIGS))
        return None, None
    if "--version" in words:
        print(f"skytune {skytune.__version__}")
        return None, None
    for word in words:
        if word.startswith("-") and word != "--cfg":
            known = "--help, --version, --cfg, --config-dir"
            raise ConfigError(f"unknown option {word}: there are {known}; all else is key=value")
    return words, folder


def _load_dotenv() -> None:
    """Load `.env` of the repository; variables that are set already stay."""
    from dotenv import load_dotenv

    load_dotenv(SOURCE.parent / ".env")


def _refuse_launchers() -> None:
    """Two launchers, one around the other, would start the whole pipeline once a process."""
    if "ACCELERATE_MIXED_PRECISION" in os.environ or ("LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ):
        raise ConfigError(
            "src/run.py starts the worker processes itself: run it with plain python, and launch.num_processes=N "
            "instead of accelerate launch or torchrun"
        )


def _run(config: RunConfig) -> int:
    _log_plainly()
    from skytune.stacks import environment

    environment.prepare(SOURCE)
    client = environment.connect()

    from skytune.pipelines.running import run_pipeline

    print(run_pipeline(client, config))
    return EXIT_OK


def _log_plainly() -> None:
    """Messages of this package go to the screen as they are."""
    import logging

    log = logging.getLogger("skytune")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
