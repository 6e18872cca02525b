"""The command: compose a configuration, choose a pipeline, run it, say where to look.

python src/run.py --help
"""

import gc
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import skytune

from ..common.exit_codes import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_NOT_SAVED,
    EXIT_OK,
    EXIT_PREEMPTED,
)
from ..common.stop_request import SIGNALS, Interruption
from ..config import ConfigError, Detached, Pipeline, Preempted, RunConfig, UserError
from ..config.folders import load_dotenv
from ..config.schema.sagemaker import PREFIX
from .command import in_words, told_beside

if TYPE_CHECKING:
    from ..launch.resume_from_store import Continued

SOURCE = Path(skytune.__file__).absolute().parents[1]
CONFIGS = SOURCE.parent / "configs"
QUIET = ("debug=null", "debug=smoke")
"""Words that ask for no traceback."""

INSTALL = "`make install`, then `source .venv/bin/activate` (or `make run ARGS=...`, which does both)"


def main(argv: list[str]) -> int:
    """Run the command; return its exit code, which other machines of the run end by, too."""
    request, code = Ending(SIGNALS), EXIT_ERROR
    request.listen()
    try:
        code = _command(argv, request)
        return code
    finally:
        request.ignore()
        if (standby := sys.modules.get("skytune.launch.standby")) is not None:
            standby.end()
        several = sys.modules.get("skytune.launch.multinode.launcher")
        if several is not None and several.Lead.current is not None:
            several.Lead.current.end(code)


def _command(argv: list[str], request: "Ending") -> int:
    """Run the command in words that a person reads; return its exit code."""
    gc.disable()  # imports make a million objects and no garbage; to look for some was a third of a cached run
    shown = ErrorDisplay(
        any(word.startswith(("debug=", "debug.traceback=true")) and word not in QUIET for word in argv)
    )
    try:
        return _main(argv, shown)
    except KeyboardInterrupt:
        return request.code()
    except Detached as error:
        print(f"detached: {error}")
        return EXIT_OK
    except Preempted as error:
        print(f"preempted: {error}", file=sys.stderr)
        return EXIT_PREEMPTED
    except Exception as error:
        if shown.traceback and not request.asked_by:
            raise
        from ..config.scrubbing import scrub

        if not request.asked_by or told_beside(error):
            print(f"error: {scrub(in_words(error, INSTALL, 'debug= shows the traceback'))}", file=sys.stderr)
        return request.code() if request.asked_by else EXIT_ERROR


class Ending(Interruption):
    """Ends this process where it is asked to while no worker listens (while they do, they save)."""

    def code(self) -> int:
        """Say so; return the exit code."""
        if self.asked_by in (None, signal.SIGINT):
            print(
                "interrupted: the worker processes have ended; the same command goes on from the last checkpoint",
                file=sys.stderr,
            )
            return EXIT_INTERRUPTED
        name = signal.Signals(self.asked_by).name
        print(f"preempted: {name}; what had been saved is kept, and the same command goes on", file=sys.stderr)
        return EXIT_PREEMPTED


@dataclass
class ErrorDisplay:
    """What an error shows: known from the words at first, from the configuration once there is one."""

    traceback: bool


def _main(argv: list[str], shown: ErrorDisplay) -> int:
    options, words, folder = _options(list(argv))
    if "--version" in options:
        print(f"skytune {skytune.__version__}")
        return EXIT_OK
    load_dotenv(SOURCE.parent)
    from ..config.compose import compose_run, parse_resume_path, run_to_promote, search_to_take, to_yaml

    place = parse_resume_path(words) if "--help" not in options else None
    found: Continued | None = None
    if place:
        from ..launch.resume_from_store import find_stored_run

        found = find_stored_run(place)
    base = found.base() if found else None
    if (search := search_to_take(words)) is not None:
        from ..search import taken

        base = taken(search)
    if (promoted := run_to_promote(words)) is not None:
        from ..release.gate import base_of

        base = base_of(promoted)
    config = compose_run(CONFIGS, words, folder, base)
    shown.traceback = config.debug.traceback
    if found:
        config = found.adopt(config)
    if "--help" in options:
        from ..config.help import help_text

        print(help_text([CONFIGS, *([folder] if folder else [])], config))
        return EXIT_OK
    if "--cfg" in options:
        print(to_yaml(config), end="")
        return EXIT_OK
    _check_not_launched()
    from ..launch import origin

    origin.begin()
    if config.launch.gpu_ids is not None:  # before anything looks for GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = config.launch.gpu_ids
    from ..config.scrubbing import log_plainly

    log_plainly()
    if found:
        found.prepare(config)
    return _run(config)


def _options(words: list[str]) -> tuple[set[str], list[str], Path | None]:
    """Return the options, the words that change the configuration, and the folder of `--config-dir`."""
    folder = None
    if "--config-dir" in words:
        at = words.index("--config-dir")
        if at + 1 >= len(words):
            raise ConfigError("--config-dir needs a folder")
        folder = Path(words[at + 1])
        del words[at : at + 2]
    options = {"--help" if word == "-h" else word for word in words if word.startswith("-")}
    for word in options - {"--help", "--version", "--cfg"}:
        known = "--help, --version, --cfg, --config-dir"
        raise ConfigError(f"unknown option {word}: there are {known}; all else is key=value")
    return options, [word for word in words if not word.startswith("-")], folder


def _check_not_launched() -> None:
    """Two launchers, one around the other, would start the whole pipeline once a process."""
    if "ACCELERATE_MIXED_PRECISION" in os.environ or ("LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ):
        raise ConfigError(
            "src/run.py starts the worker processes itself: run it with plain python, and launch.num_processes=N "
            "instead of accelerate launch or torchrun (launch.accelerate_config=FILE instead of --config_file, "
            "launch.nodes=N instead of --num_machines or --nnodes); only `-m skytune.training JOBDIR` runs inside them"
        )


def _run(config: RunConfig) -> int:
    from ..launch.multinode.topology import nodes_of

    nodes = nodes_of(config.launch, os.environ)
    if nodes.rank:  # node 0 runs the pipeline
        from ..launch.multinode.node import serve

        gc.enable()
        return serve(config, nodes)
    if config.pipeline is Pipeline.merge:
        from ..models import merge_adapter

        place = Path(f"{str(config.checkpoint.path).rstrip('/')}-merged")
        merge_adapter(str(config.checkpoint.path), place)
        print(f"merged: {place}")
        return EXIT_OK
    from ..launch.multinode.launcher import Lead

    Lead.begin(config, nodes)
    if config.dry_run:
        config = dry(config)
    if config.pipeline is Pipeline.study:
        from ..study import make_plan, plan_text

        design = config.study
        plan = make_plan(config)
        if design.dry_run:
            print(plan_text(plan))
        if not (design.report_only or design.adopt):
            plan.check()  # before ZenML is opened, and before anything runs
        if design.dry_run:
            return EXIT_OK
    if config.pipeline is Pipeline.search:
        from ..search import checked_plan

        plan_of_search = checked_plan(config)  # before ZenML is opened, and before anything runs
        if config.search.dry_run:
            print(plan_of_search)
            return EXIT_OK
    from ..pipelines.validation import validated

    config = validated(config)
    if config.pipeline is Pipeline.export:
        from ..serve.onnx_export import export_onnx

        print("\n".join(export_onnx(config)))
        return EXIT_OK
    if config.pipeline is Pipeline.data:
        return _check_data(config)
    from ..stacks import environment

    environment.prepare(SOURCE)
    if not config.dry_run:
        from ..launch import standby

        standby.begin(config)
    client = environment.connect()

    if config.dry_run:
        from ..aws.sagemaker import CLOUD
        from ..launch.sagemaker.preview import preview
        from ..stacks.flavor import settings_of_active

        print(preview(config, CLOUD, settings_of_active(client)))
        return EXIT_OK
    from ..pipelines.running import run_pipeline

    gc.freeze()  # what is there stays: never looked at again, at the end neither
    gc.enable()
    finished = run_pipeline(client, config)
    print(finished.summary)
    if finished.nothing_done:
        raise UserError(finished.nothing_done)
    if finished.save_failed:
        print(f"warning: trained, but not everything could be saved: {finished.save_failed}", file=sys.stderr)
        return EXIT_NOT_SAVED
    return EXIT_OK


def dry(config: RunConfig) -> RunConfig:
    """Return the configuration of which only is said what it would do.

    Raises:
        ConfigError: nothing can be said of it.
    """
    if config.pipeline is Pipeline.study:
        return replace(config, study=replace(config.study, dry_run=True))
    if config.pipeline is Pipeline.search:
        return replace(config, search=replace(config.search, dry_run=True))
    if config.pipeline is Pipeline.training and str(config.compute.instance_type).startswith(PREFIX):
        return config
    raise ConfigError(
        "dry_run=true shows a study's cells, a search's trials, and the request of a training on SageMaker "
        "(compute=ml.g5.2xlarge); --cfg shows the configuration of any run"
    )


def _check_data(config: RunConfig) -> int:
    """Say what the data set holds; fail where training on it would."""
    from ..data.profile import profile
    from ..report.data_check import check_summary, write_check
    from ..tasks import chosen

    task = chosen(config.task, config.data, config.model)
    found = profile(config.data, config.model, config.seed, config.eval.sets, task)
    print(check_summary(found, write_check(config.data, found)))
    if found["refused"]:
        raise UserError(found["refused"])
    return EXIT_OK
