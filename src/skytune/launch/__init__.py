"""The room of launchers: where and how the worker processes of a job run."""

from .jobs import Outcome, checkpoint_hash, class_names, predict, read_predictions, train
from .local import Launcher, LocalLauncher
from .runs import RunFolder, decisive, run_key
from .skypilot import SkyPilotLauncher
