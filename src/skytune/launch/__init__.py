"""The room of launchers: where and how the worker processes of a job run."""

from .local import Launcher, LocalLauncher
from .run_dir import RunFolder, identity_config, run_key
from .run_job import JobResult, checkpoint_hash, class_names, predict, read_predictions, train
from .skypilot import SkyPilotLauncher
