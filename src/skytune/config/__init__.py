"""The room of typed configuration: one dataclass a group, validated when it is made; no Hydra needed here."""

from .benchmark import BenchmarkConfig, Held, PriceSource
from .callbacks import EarlyStoppingConfig, EmaConfig, UploadConfig
from .compute import ComputeConfig, Device, LaunchConfig, RecoveryConfig
from .convert import from_dict, to_dict
from .data import BadRows, DataConfig, DataSource, SpecialTokens
from .errors import ConfigError, Detached, NotReachable, Preempted, UserError, WorkerError
from .evaluation import METRICS, CheckpointConfig, EvalConfig, LogConfig, OnFailure, Select
from .model import ModelConfig
from .run import DebugConfig, Pipeline, RunConfig
from .strategy import CompileConfig, CompileMode, Offload, Precision, Sharding, StrategyConfig, StrategyName
from .training import (
    BatchConfig,
    LoaderConfig,
    OptimizerConfig,
    OptimizerName,
    ScaleLr,
    ScheduleConfig,
    ScheduleName,
)

__all__ = [
    "METRICS",
    "BadRows",
    "BatchConfig",
    "BenchmarkConfig",
    "CheckpointConfig",
    "CompileConfig",
    "CompileMode",
    "ComputeConfig",
    "ConfigError",
    "DataConfig",
    "DataSource",
    "DebugConfig",
    "Detached",
    "Device",
    "EarlyStoppingConfig",
    "EmaConfig",
    "EvalConfig",
    "Held",
    "LaunchConfig",
    "LoaderConfig",
    "LogConfig",
    "ModelConfig",
    "NotReachable",
    "Offload",
    "OnFailure",
    "OptimizerConfig",
    "OptimizerName",
    "Pipeline",
    "Precision",
    "Preempted",
    "PriceSource",
    "RecoveryConfig",
    "RunConfig",
    "ScaleLr",
    "ScheduleConfig",
    "ScheduleName",
    "Select",
    "Sharding",
    "SpecialTokens",
    "StrategyConfig",
    "StrategyName",
    "UploadConfig",
    "UserError",
    "WorkerError",
    "from_dict",
    "to_dict",
]
