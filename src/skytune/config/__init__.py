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
