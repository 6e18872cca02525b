"""The command of past runs: list, show, compare, reproduce, take away.

python src/runs.py --help
"""

import argparse
import json
import logging
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import skytune  # noqa: F401  found beside this file, whatever else is installed

SOURCE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE] + [str(SOURCE), str(Path.cwd())]

from skytune.cli.command import make_parser, run_command, with_subcommands  # noqa: E402
from skytune.common.exit_codes import EXIT_ERROR, EXIT_OK  # noqa: E402
from skytune.common.output import make_lasting  # noqa: E402
from skytune.config import ConfigError  # noqa: E402

if TYPE_CHECKING:
    from skytune.runs.catalog import RunRecord
    from skytune.runs.removal import Records

CONFIGS = SOURCE.parent / "configs"
EXAMPLES = """\
examples:
  python src/runs.py ls --sort score                    best last; --model, --data, --status choose
  python src/runs.py show 40aa5b                        any part of a name that only one run has, or a path
  python src/runs.py compare 40aa5b 689e1b              keys, rows, packages, code; losses; a paired test
  python src/runs.py compare 40aa5b 689e1b --html compare.html
  python src/runs.py reproduce 40aa5b                   prepare, train and predict again: the same to the bit?
  python src/runs.py rm 40aa5b                          says what would go, and asks
  python src/runs.py prune --keep 3 --older-than 30d    of every name the newest three stay
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""

    main_parser = make_parser(
        "python src/runs.py",
        "Runs in SKYTUNE_HOME (~/.cache/skytune): listed, compared, reproduced, taken away.",
        EXAMPLES,
    )
    command = with_subcommands(main_parser)
    listing = command("ls", "list runs: name, date, status, data, model, score on the test split, cost, size")
    listing.add_argument("pattern", nargs="?", default="", metavar="TEXT", help="a part of the name")
    listing.add_argument(
        "--sort", default="date", metavar="FIELD", help="name, date, status, data, model, score, cost, size"
    )
    listing.add_argument("--reverse", action="store_true", help="largest, newest or last first")
    listing.add_argument("--last", type=int, metavar="N", help="only the last N lines")
    showing = command("show", "show one run: settings, scores, times, cost, where things lie")
    comparing = command("compare", "compare runs: what differs, from which step on, and by more than chance?")
    comparing.add_argument("runs", nargs="+", metavar="RUN", help="two runs, or more for the page of --html")
    comparing.add_argument("--html", metavar="FILE", help="also write a page with the learning curves of all")
    again = command(
        "reproduce", "run it again beside the first time; exit code 0: the same result, 1: what differs first"
    )
    for made in (showing, again):
        made.add_argument("run", metavar="RUN")
    again.add_argument("words", nargs="*", metavar="KEY=VALUE", help="keys that do not decide the result: compute=cpu")
    again.add_argument("--keep", action="store_true", help="keep the second run's folder also where nothing differs")
    removing = command("rm", "delete runs: folder, checkpoints, ZenML's runs and artifacts; one that others need stays")
    removing.add_argument("runs", nargs="+", metavar="RUN")
    pruning = command("prune", "delete many runs; all conditions that are given must hold")
    pruning.add_argument("pattern", nargs="?", default="", metavar="TEXT", help="a part of the name")
    pruning.add_argument("--keep", type=int, metavar="N", help="the newest N of every name stay")
    pruning.add_argument("--older-than", type=_age, metavar="AGE", help="such as 12h, 30d, 8w")
    pruning.add_argument("--unfinished", action="store_true", help="only runs without a result")
    for made in (listing, pruning):
        made.add_argument("--model", default="", metavar="TEXT", help="a part of the model's name")
        made.add_argument("--data", default="", metavar="TEXT", help="a part of the data's name")
        made.add_argument("--status", default="", help="completed, running, preempted, failed or stopped")
    for made in (listing, showing, comparing):
        made.add_argument("--json", action="store_true", help="for programs")
    for made in (removing, pruning):
        made.add_argument("--yes", action="store_true", help="do not ask")
        made.add_argument("--dry-run", action="store_true", help="only say what would go")
    return main_parser


def _age(text: str) -> timedelta:
    unit = {"h": "hours", "d": "days", "w": "weeks"}.get(text[-1:])
    if unit is None or not text[:-1].isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: write a number and h, d or w, such as 30d")
    return timedelta(**{unit: int(text[:-1])})


def main(argv: list[str]) -> int:
    """Run the command; return its exit code."""
    return run_command(run, parser().parse_args(argv))


def run(words: argparse.Namespace) -> int:
    """Do what the words say."""
    from skytune.runs import catalog, tables

    if words.command == "ls":
        if words.sort not in catalog.FIELDS:
            raise ConfigError(f"--sort {words.sort}: allowed are {', '.join(catalog.FIELDS)}")
        found = catalog.ordered(_selected(words), words.sort, words.reverse)[-(words.last or 0) :]
        print(_json([catalog.as_values(run) for run in found]) if words.json else tables.listing(found), end="")
        return EXIT_OK
    if words.command == "show":
        found = catalog.find_run(words.run)
        print(_json(tables.facts(found)) if words.json else tables.showing(found), end="")
        return EXIT_OK
    if words.command == "compare":
        return _compare(words)
    if words.command == "reproduce":
        return _reproduce(words)
    return _remove(words)


def _selected(words: argparse.Namespace) -> "list[RunRecord]":
    from skytune.runs import catalog

    return catalog.selected(
        catalog.all_runs(), pattern=words.pattern, model=words.model, data=words.data, status=words.status
    )


def _json(values: Any) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n"


def _compare(words: argparse.Namespace) -> int:
    import dataclasses

    from skytune.runs import catalog, compare, page, tables

    runs = [catalog.find_run(name) for name in words.runs]
    if len(runs) != 2 and not words.html:
        raise ConfigError(f"compare: {len(runs)} runs; give two, or --html FILE for the page of any number")
    pairs = [compare.compare(runs[0], other) for other in runs[1:]]
    if words.html:
        page.write(Path(words.html), runs, pairs)
    if len(runs) == 2:
        print(_json(dataclasses.asdict(pairs[0])) if words.json else tables.comparison(pairs[0]), end="")
    if words.html:
        print(f"page: {Path(words.html).absolute()}")
    return EXIT_OK


def _reproduce(words: argparse.Namespace) -> int:
    from skytune.config.compose import compose_run
    from skytune.config.scrubbing import log_plainly
    from skytune.runs import catalog, reproduce, tables

    first = catalog.find_run(words.run)
    log_plainly()
    config = compose_run(CONFIGS, words.words, None, reproduce.base(first))
    from skytune.steps.fingerprints import fingerprints

    second = reproduce.run_again(first, config, fingerprints("train_model", config))
    print(tables.reproduction(second), end="")
    if second.same and not words.keep:
        second.remove()
    return EXIT_OK if second.same else EXIT_ERROR


def _remove(words: argparse.Namespace) -> int:
    from skytune.runs import catalog, removal, tables

    removal.sweep()
    everything = catalog.all_runs()
    if words.command == "rm":
        wanted = list({run.folder: run for run in (catalog.find_run(name, everything) for name in words.runs)}.values())
    else:
        chosen = {run.folder for run in _selected(words)}
        wanted = removal.old_runs(everything, keep=words.keep, older_than=words.older_than, unfinished=words.unfinished)
        wanted = [run for run in wanted if run.folder in chosen]
    records = _zenml_records()
    plan = removal.plan_removal(wanted, everything, records)
    print(tables.removals(plan), end="")
    going = [entry for entry in plan if not entry.kept]
    stays = words.command == "rm" and len(going) < len(plan)
    if not going or words.dry_run:
        return EXIT_ERROR if stays else EXIT_OK
    if not words.yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"{words.command}: nobody is there to be asked: --yes deletes, --dry-run only says what")
        if input("delete? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return EXIT_ERROR
    for entry in going:
        # Looked up again: what it shares with runs that have just gone, goes with the last of them.
        removal.remove(replace(entry, records=records(entry.run.key)))
        print(f"deleted {entry.run.key}")
    return EXIT_ERROR if stays else EXIT_OK


def _zenml_records() -> "Any":
    """Return what looks a run's records up in ZenML, which is opened once it is asked."""
    from functools import cache

    @cache
    def client() -> Any:
        from skytune.stacks import environment

        environment.prepare(SOURCE)
        return environment.connect()

    def records(key: str) -> "Records":
        made = client()
        from skytune.pipelines.records import records_of

        return records_of(made, key)

    return records


if __name__ == "__main__":
    make_lasting()
    logging.getLogger("skytune").setLevel(logging.INFO)
    sys.exit(main(sys.argv[1:]))
