"""The stack command: register / check / destroy ZenML stacks and the AWS resources behind them.

python src/stack.py --help
"""

import argparse
import sys
from pathlib import Path

import skytune  # noqa: F401  found beside this file, whatever else is installed

SOURCE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE] + [str(SOURCE)]

from skytune.cli.command import make_parser, run_command, with_subcommands  # noqa: E402
from skytune.common.output import make_lasting  # noqa: E402

CONFIGS = SOURCE.parent / "configs"
EXAMPLES = """\
examples:
  python src/stack.py register aws --region us-east-1       bucket, role, image repository, ZenML stack
  python src/stack.py check aws --compute 4xa10g            identity, quotas, prices, image, bucket, versions
  python src/stack.py register aws --compute g5.12xlarge --spot
  python src/stack.py register aws --sagemaker              also in jobs of SageMaker: compute=ml.g5.2xlarge
  python src/stack.py check aws --compute ml.g5.2xlarge     their quotas, price, role
  python src/stack.py policy aws                            the IAM policy of a person who trains
  python src/stack.py destroy aws --delete-data             nothing is left, the checkpoints neither
  zenml stack set aws && python src/run.py                  train there
  zenml stack set default                                   back to this machine

Credentials come the usual way: AWS_PROFILE, `aws configure`, `aws sso login`, or .env of this folder.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""

    main_parser = make_parser(
        "python src/stack.py", "Machines, a bucket and a ZenML stack on AWS: made, looked over, taken away.", EXAMPLES
    )
    subcommand = with_subcommands(main_parser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = subcommand(name, text)
        if name != "list":
            made.add_argument(
                "name", metavar="NAME", help="the stack; configs/stacks/NAME.yaml says what it is made of"
            )
            made.add_argument(
                "--region", help="of machines and bucket (default: the AWS profile's, AWS_DEFAULT_REGION)"
            )
            made.add_argument("--bucket", help="for checkpoints (default: one of its own, made by register)")
        return made

    registering = command("register", "make what is missing on AWS, and the stack in ZenML")
    checking = command("check", "would a run get its machine now, and at what price? exit code 0: go, 1: no go")
    for made in (registering, checking):
        made.add_argument("--compute", help="a machine: a preset of configs/compute, or an instance type (g5.12xlarge)")
        made.add_argument("--spot", action=argparse.BooleanOptionalAction, help="spot machines")
        made.add_argument("--file", help="another stack file: a name in configs/stacks or a path")
    checking.add_argument(
        "--timeout",
        type=float,
        default=9.0,
        metavar="SECONDS",
        help="how long it may take; what has not answered by then fails (default: 9)",
    )
    registering.add_argument(
        "--sagemaker", action="store_true", help="also the execution role of training jobs (compute=ml.g5.2xlarge)"
    )
    registering.add_argument("--keep-days", type=int, help="age in days at which checkpoints are deleted (default: 30)")
    command("list", "show the stacks that are registered")
    destroying = command("destroy", "take a stack away, on AWS and in ZenML; what was not made for it stays")
    destroying.add_argument("--yes", action="store_true", help="do not ask")
    destroying.add_argument("--delete-data", action="store_true", help="also delete checkpoints and images")
    printing = command("policy", "print the IAM policy that a person needs")
    printing.add_argument("--setup", action="store_true", help="of who registers and destroys, beside the other one")
    return main_parser


def main(argv: list[str]) -> int:
    """Run the command; return its exit code."""
    return run_command(
        run,
        parser().parse_args(argv),
        interrupted="interrupted: the same command goes on from here",
        install="`make install-dev`, or the extra aws",
    )


def run(words: argparse.Namespace) -> int:
    """Do what the words say."""
    from skytune.config.folders import load_dotenv
    from skytune.stacks import environment

    load_dotenv(SOURCE.parent)
    environment.prepare(SOURCE)
    from skytune.doctor import checking
    from skytune.stacks import commands
    from skytune.stacks.options import StackOptions

    given = {key: value for key, value in vars(words).items() if key in StackOptions.__dataclass_fields__}
    asked = StackOptions(**{"name": "", **given}, configs=CONFIGS)
    if words.command == "register":
        return commands.register(asked)
    if words.command == "check":
        return checking.check(asked)
    if words.command == "destroy":
        return commands.destroy(asked, yes=words.yes, delete_data=words.delete_data)
    if words.command == "policy":
        return commands.policy(asked, setup=words.setup)
    return commands.show_all(asked)


if __name__ == "__main__":
    make_lasting()
    sys.exit(main(sys.argv[1:]))
