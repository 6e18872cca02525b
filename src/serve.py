"""The command that serves: a trained model behind HTTP.

python src/serve.py --help
"""

import argparse
import logging
import sys
from pathlib import Path

import skytune  # noqa: F401  found beside this file, whatever else is installed

SOURCE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE] + [str(SOURCE), str(Path.cwd())]

from skytune.cli.command import make_parser, run_command  # noqa: E402
from skytune.common.exit_codes import EXIT_OK  # noqa: E402
from skytune.common.output import make_lasting  # noqa: E402
from skytune.config import UserError  # noqa: E402

EXAMPLES = """\
examples:
  python src/serve.py PATH                              a run's outputs/model, any trained classifier, a Hub id
  curl -s http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{"inputs": ["a fine film"]}'
  SKYTUNE_SERVE_TOKEN=... python src/serve.py PATH --host 0.0.0.0     from other machines, who know the token

Addresses: /predict, /health, /metrics (Prometheus), /docs (a page with the model's card), /openapi.json
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
        return int(text)

    def port(text: str) -> int:
        if not text.isdecimal() or int(text) > 65535:
            raise argparse.ArgumentTypeError(f"{text}: must be a number from 0 to 65535")
        return int(text)

    what = "A trained model behind HTTP: the answers of an evaluation, in micro-batches."
    made = make_parser("python src/serve.py", what, EXAMPLES)
    made.add_argument("checkpoint", metavar="PATH", help="folder of a trained model, or a Hub id")
    made.add_argument("--host", default="127.0.0.1", help="address to listen at (this machine alone; 0.0.0.0: all)")
    made.add_argument("--port", type=port, metavar="N", default=8000, help="port (8000); 0: any that is free")
    made.add_argument("--task", default="auto", help="what it was trained for, where its files do not say")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    made.add_argument(
        "--precision",
        default="fp32",
        help="fp32, in which an answer is the same in any batch; or bf16, fp16, tf32, auto",
    )
    made.add_argument("--threads", type=count, help="threads that compute on a CPU (all cores)")
    made.add_argument("--max-length", type=count, metavar="TOKENS", help="where texts are cut (as in training)")
    made.add_argument("--batch-size", type=count, default=32, metavar="ROWS", help="most rows of a micro-batch (32)")
    made.add_argument("--queue", type=count, default=1024, metavar="ROWS", help="most rows that wait (1024); then: 429")
    made.add_argument("--max-rows", type=count, default=256, metavar="ROWS", help="most rows of a request (256)")
    made.add_argument("--max-characters", type=count, default=20_000, metavar="N", help="letters of a row (20000)")
    made.add_argument("--max-body", type=count, default=4 * 2**20, metavar="BYTES", help="of a request (4194304)")
    made.add_argument("--grace", type=count, default=30, metavar="SECONDS", help="for what was asked, at the end (30)")
    made.add_argument("--plugins", nargs="+", default=[], metavar="MODULE", help="modules that the model is made of")
    made.add_argument("--trust", action="store_true", help="run whatever code the model's files name")
    made.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    return made


def main(argv: list[str]) -> int:
    """Run the command; return its exit code."""
    install = "`pip install -c constraints.txt -e '.[train,serve]'`, or `make install`"
    return run_command(run, parser().parse_args(argv), install=install)


def run(words: argparse.Namespace) -> int:
    """Do what the words say; return the exit code."""
    from skytune.config.targets import import_plugins
    from skytune.serve.requests import Limits
    from skytune.serve.server import serve

    if words.queue < words.max_rows:
        raise UserError(f"--queue {words.queue}: a request of --max-rows {words.max_rows} would never be taken")
    import_plugins(words.plugins)
    if words.threads:
        import torch

        torch.set_num_threads(words.threads)
    values = {
        "task": {"name": words.task},
        "plugins": words.plugins,
        "trust": words.trust,
        "precision": words.precision,
        "compute": {"device": words.device},
        "data": {"max_length": words.max_length},
    }
    limits = Limits(
        words.max_rows, words.max_characters, words.max_body, queue=words.queue, batch_rows=words.batch_size
    )
    serve(words.checkpoint, values, host=words.host, port=words.port, limits=limits, grace_seconds=words.grace)
    return EXIT_OK


if __name__ == "__main__":
    make_lasting()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    sys.exit(main(sys.argv[1:]))
