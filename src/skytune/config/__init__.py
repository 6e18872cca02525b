"""The room of typed configuration: one dataclass a group, validated when it is made; no Hydra needed here."""

from .callbacks import EarlyStoppingConfig, EmaConfig, UploadConfig
from .compute import ComputeConfig, Device, LaunchConfig, RecoveryConfig
from .convert import from_dict, to_dict
from .data import BadRows, DataConfig, DataSource
from .errors import ConfigError, Detached, NotReachable, Preempted, UserError, WorkerError
from .evaluation import METRICS, CheckpointConfig, EvalConfig, LogConfig, OnFailure, Select
from .model import ModelConfig
from .run import DebugConfig, Pipeline, Precision, RunConfig
from .training import (
    BatchConfig,
    LoaderConfig,
    OptimizerConfig,
    OptimizerName,
    ScheduleConfig,
    ScheduleName,
)

__all__ = [
    "METRICS", "BadRows", "BatchConfig", "CheckpointConfig", "ComputeConfig", "ConfigError", "DataConfig", "DataSource",
    "DebugConfig", "Detached", "Device", "EarlyStoppingConfig", "EmaConfig", "EvalConfig", "LaunchConfig",
    "LoaderConfig", "LogConfig", "ModelConfig", "NotReachable",
    "OnFailure", "OptimizerConfig", "OptimizerName", "Pipeline", "Precision",
    "Preempted", "RecoveryConfig", "RunConfig", "ScheduleConfig", "ScheduleName",
    "Select", "UploadConfig", "UserError", "WorkerError", "from_dict", "to_dict",
]  # fmt: skip
