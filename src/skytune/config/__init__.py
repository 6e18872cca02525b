"""The room of typed configuration: one dataclass a group, validated when it is made; no Hydra needed here."""

from .errors import ConfigError, Detached, NotReachable, Preempted, UserError, WorkerError
from .schema.callbacks import EarlyStoppingConfig, EmaConfig, UploadConfig
from .schema.compute import ComputeConfig, Device, LaunchConfig, RecoveryConfig
from .schema.data import BadRows, DataConfig, DataSource, FileFormat, SpecialTokens
from .schema.evaluation import (
    CORRELATIONS,
    ENTITIES,
    ERRORS,
    IMAGES,
    METRICS,
    MORE,
    PACKAGED,
    CheckpointConfig,
    EvalConfig,
    LogConfig,
    OnSaveError,
    Select,
)
from .schema.model import LoraConfig, ModelConfig
from .schema.prediction import PredictConfig
from .schema.promotion import ModelStage, PromoteConfig
from .schema.run import DebugConfig, OnNan, Pipeline, RunConfig
from .schema.sagemaker import Distribution, SageMakerConfig
from .schema.search import Sampler, SearchConfig
from .schema.strategy import (
    CompileConfig,
    CompileMode,
    Offload,
    Precision,
    Sharding,
    StrategyConfig,
    StrategyName,
)
from .schema.study import Held, PriceSource, StudyConfig
from .schema.task import AugmentConfig, LossConfig, TaskConfig
from .schema.training import (
    BatchConfig,
    LoaderConfig,
    OptimizerConfig,
    OptimizerName,
    ScaleLr,
    ScheduleConfig,
    ScheduleName,
)
from .serialize import from_dict, to_dict
