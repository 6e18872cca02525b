"""The whole configuration of one run."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..checks import at_least, has_targets, is_seed
from ..errors import ConfigError
from ..renamed import renamed_values
from ..serialize import from_dict
from .callbacks import EarlyStoppingConfig, EmaConfig, UploadConfig
from .compute import ComputeConfig, Device, LaunchConfig
from .data import DataConfig
from .evaluation import PACKAGED, CheckpointConfig, EvalConfig, LogConfig
from .export import ExportConfig
from .model import ModelConfig
from .prediction import PredictConfig
from .promotion import PromoteConfig
from .sagemaker import SageMakerConfig
from .search import SearchConfig
from .strategy import CompileConfig, Precision, StrategyConfig, StrategyName
from .study import StudyConfig
from .task import AugmentConfig, LossConfig, TaskConfig
from .tracking import TrackerConfig
from .training import BatchConfig, LoaderConfig, OptimizerConfig, ScheduleConfig


class Pipeline(str, Enum):
    """What `src/run.py` runs."""

    training = "training"
    evaluate = "evaluate"
    predict = "predict"
    study = "study"
    search = "search"
    merge = "merge"
    export = "export"
    publish = "publish"
    promote = "promote"
    data = "data"


NEEDS = {
    Pipeline.evaluate: "checkpoint=PATH (a folder with a trained model, or a Hub id)",
    Pipeline.predict: "checkpoint=PATH predict.input=FILES predict.output=FILE",
    Pipeline.merge: "checkpoint=PATH (the folder of a trained adapter)",
    Pipeline.export: "checkpoint=PATH (a folder with a trained model, or a Hub id)",
    Pipeline.publish: "checkpoint=PATH (a run's outputs/model) and upload.url=PLACE",
    Pipeline.promote: "checkpoint=PATH (a run's outputs/model) and stage=production (or staging); "
    "with promote.rollback=true, promote.model=NAME will do in the place of a checkpoint",
    Pipeline.study: "a design: experiment=NAME, or study.factors",
}
"""What has to be given for a pipeline; all but a study take a trained model."""


class OnNan(str, Enum):
    """What becomes of a step whose loss or gradient is not finite."""

    stop = "stop"
    skip = "skip"
    rewind = "rewind"


@dataclass(kw_only=True)
class DebugConfig:
    """Switches of the `debug` presets (smoke, overfit, profile)."""

    traceback: bool = False
    """Show the whole traceback of an error instead of one line."""

    overfit: bool = False
    """Validate on the train rows themselves (with a small `data.max_rows`): a model that cannot learn a few rows by
    heart has a bug."""

    profile_steps: int = 0
    """Record so many steps (after two warm-up steps) with torch's profiler into the run's folder. 0 is off."""

    def __post_init__(self) -> None:
        at_least(self, "debug", 0, "profile_steps")


@dataclass(kw_only=True)
class RunConfig:
    """One run: what is learned from what, how, and on which machine."""

    name: str = ""
    """First part of the run's folder name; empty means `<model>-<data>`."""

    pipeline: Pipeline = Pipeline.training
    """`training` (load, train, evaluate), `evaluate` (score `checkpoint=PATH` without training), `predict` (write
    the answers of `checkpoint=PATH` beside the rows of files without labels), `merge` (write the plain model that the
    adapter in `checkpoint=PATH` and its base make together, to `PATH-merged`), `export` (write
    `checkpoint=PATH` as ONNX, checked on the test split), `publish` (copy a run's model
    `checkpoint=PATH` to `upload.url`, with its card), `promote` (give it `stage=production` where a test on held-out
    rows says that it is better), `study` (one training a cell of an experiment design), `search` (trials out of a space
    of hyperparameters) or `data` (look at the data set: nothing is trained)."""

    seed: int = 42
    """Decides splits, order of samples, new weights and dropout."""

    epochs: int = 1
    """Passes over the train split."""

    max_steps: int | None = None
    """Stop after so many optimizer steps; the schedule ends there too. Empty means `epochs` decides."""

    limit_train_batches: int | None = None
    """Use only the first so many global batches of every epoch."""

    limit_eval_batches: int | None = None
    """Use only the first so many batches of every evaluation split (the number of rows scored is reported)."""

    precision: Precision = Precision.auto
    """`auto` is bf16 on GPUs that have it, else fp32. `fp32`, `tf32` (fp32 with faster, rougher matrix products),
    `bf16`, `fp16` (with loss scaling; refused on a CPU), `fp8` (needs torchao and a GPU that has it). What the device
    does not have falls back, says so, and is in the report."""

    on_nan: OnNan = OnNan.stop
    """A step whose loss or gradient is not finite: `stop` ends the run with its rows, `skip` leaves the step out,
    `rewind` puts weights and optimizer back to the last checkpoint and leaves out all rows since (Chowdhery et al.
    2022, arXiv:2204.02311, section 5.1). Ten such steps in a row end the run in any case."""

    resume: str = "auto"
    """`auto` continues an unfinished run of the same key from its newest whole checkpoint, else starts; `must` refuses
    to start; `never` starts anew; a number takes that step's checkpoint; a path or URL takes a checkpoint (or a run's
    newest) from elsewhere, if it was trained on the same data in the same way. A path or URL alone is enough on a
    machine that has nothing else of the run: its configuration lies in the store, too."""

    dry_run: bool = False
    """Only say what would be done: the request to SageMaker and its price (`compute=ml.*`), the cells of a study, the
    trials of a search. Nothing is started, and nothing is paid for."""

    cache: bool = True
    """Reuse the results of steps whose inputs, code, data and versions did not change."""

    plugins: list[str] = field(default_factory=list)
    """Modules of yours to import first: whatever they register with `@configurable` can then be named."""

    trust: bool = False
    """Run whatever code the files that are read name: the network of your own in `checkpoint=PATH`, the callbacks, data
    and plugins of a run that `resume=URL` continues. Without it they run where this command names their modules
    (`plugins=[my_task]`). To be given on the command line alone."""

    task: TaskConfig = field(default_factory=TaskConfig)
    """What is learned."""

    loss: LossConfig = field(default_factory=LossConfig)
    """How far off an answer is."""

    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """How images are changed while they are learned."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Which network."""

    data: DataConfig = field(default_factory=DataConfig)
    """Which sentences and labels."""

    batch: BatchConfig = field(default_factory=BatchConfig)
    """How many rows a step learns from."""

    loader: LoaderConfig = field(default_factory=LoaderConfig)
    """How rows reach the device."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How weights change."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How the learning rate changes."""

    eval: EvalConfig = field(default_factory=EvalConfig)
    """What is measured, and when."""

    predict: PredictConfig = field(default_factory=PredictConfig)
    """What `pipeline=predict` reads and writes."""

    export: ExportConfig = field(default_factory=ExportConfig)
    """What `pipeline=export` writes."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which weights are kept."""

    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    """When a run ends before its last step."""

    ema: EmaConfig = field(default_factory=EmaConfig)
    """Averaged weights."""

    upload: UploadConfig = field(default_factory=UploadConfig)
    """Where the trained model is copied to."""

    promote: PromoteConfig = field(default_factory=PromoteConfig)
    """Which stage the model is to get, and by which test."""

    log: LogConfig = field(default_factory=LogConfig)
    """How often progress is recorded."""

    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    """How the training step is spread over processes."""

    compile: CompileConfig = field(default_factory=CompileConfig)
    """Whether torch compiles the model."""

    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """Where the numbers of a run are shown: TensorBoard, Weights & Biases."""

    compute: ComputeConfig = field(default_factory=ComputeConfig)
    """Which device."""

    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """How many processes."""

    sagemaker: SageMakerConfig = field(default_factory=SageMakerConfig)
    """Training jobs of Amazon SageMaker."""

    search: SearchConfig = field(default_factory=SearchConfig)
    """Which hyperparameters are tried."""

    study: StudyConfig = field(default_factory=StudyConfig)
    """An experiment design: what is varied, what is held constant, what it may cost."""

    callbacks: dict[str, Any] = field(default_factory=dict)
    """Your own code at named moments, by name: `{_target_: package.module.Class, ...}`."""

    debug: DebugConfig = field(default_factory=DebugConfig)
    """Help for finding faults."""

    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of your own (`+extra.my_key=1`); they reach callbacks and the report."""

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "RunConfig":
        """Return the configuration that plain values hold (the inverse of `to_dict`).

        Raises:
            ConfigError: one line that names the key and what is allowed.
        """
        return from_dict(cls, renamed_values(values))

    def __post_init__(self) -> None:
        at_least(self, "", 1, "epochs")
        at_least(self, "", 1, "max_steps", "limit_train_batches", "limit_eval_batches", more=", or null for no limit")
        if self.resume not in ("auto", "required", "never") and not self.resume.isdecimal() and "/" not in self.resume:
            raise ConfigError(
                f"resume={self.resume}: allowed are auto, required, never, a step's number, a path or a URL"
            )
        is_seed(self, "")
        wanted, trained, predict = self.promote, self.checkpoint.path, self.predict
        given: dict[Pipeline, Any] = {
            Pipeline.publish: trained and self.upload.url,
            Pipeline.promote: wanted.stage and (trained or (wanted.rollback and wanted.model)),
            Pipeline.predict: trained and predict.input and predict.output,
            Pipeline.study: self.study.factors,
        }
        if self.pipeline in NEEDS and not given.get(self.pipeline, trained):
            raise ConfigError(f"pipeline={self.pipeline.value} needs {NEEDS[self.pipeline]}")
        if wanted.stage and self.pipeline not in (Pipeline.promote, Pipeline.training):
            raise ConfigError(f"promote.stage={wanted.stage.value} has an effect only on promote and training")
        if wanted.rollback and self.pipeline is not Pipeline.promote:
            raise ConfigError("promote.rollback=true needs pipeline=promote")
        if self.search.take and self.pipeline is not Pipeline.training:
            raise ConfigError(f"search.take={self.search.take} takes settings for a run: write pipeline=training")
        if self.pipeline is not Pipeline.predict and (predict.input or predict.output):
            raise ConfigError("predict.input and predict.output have an effect only with pipeline=predict")
        if trained and self.pipeline not in NEEDS.keys() - {Pipeline.study}:
            raise ConfigError(
                "checkpoint=PATH has no effect on training: use model.name=PATH to start from it, "
                "or pipeline=evaluate to score it"
            )
        if self.precision is Precision.fp16 and self.compute.device is Device.cpu:
            raise ConfigError("precision=fp16 is not supported on compute=cpu: use precision=bf16 or precision=fp32")
        measured = PACKAGED if self.eval.metrics is None else self.eval.metrics
        own = self.task._target_ is not None  # it has metrics of its own
        if self.checkpoint.metric not in {"auto", "loss", *self.eval.extra_metrics, *measured} and not (
            own or any(self.checkpoint.metric.startswith(name) for name in self.eval.extra_metrics)
        ):
            raise ConfigError(
                f"checkpoint.metric={self.checkpoint.metric}: not among eval.metrics ({', '.join(measured)}), "
                f"loss or eval.extra_metrics; packaged: {', '.join(PACKAGED)}"
            )
        if self.early_stopping.patience and not (self.eval.every_epochs or self.eval.every_steps):
            raise ConfigError(
                f"early_stopping.patience={self.early_stopping.patience} has no effect with one validation at the end: "
                "set eval.every_epochs or eval.every_steps"
            )
        whole = (StrategyName.auto, StrategyName.single, StrategyName.ddp)
        if self.model.lora.bits and self.strategy.name not in whole:
            raise ConfigError(
                f"model.lora.bits=4 does not go together with strategy={self.strategy.name.value}, which takes weights "
                "apart: strategy=ddp"
            )
        has_targets("callbacks", self.callbacks, "Class")
