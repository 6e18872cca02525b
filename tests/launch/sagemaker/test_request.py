"""The request to SageMaker against botocore's model of the service, and against its documented limits."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import ComputeConfig, ConfigError, RunConfig, SageMakerConfig, from_dict
from skytune.launch.run_dir import identity_config
from skytune.launch.sagemaker.images import SMDDP, check, gpus_of, image_of
from skytune.launch.sagemaker.request import JobPlace, checked, job_name, new_name, training_job

botocore_session = pytest.importorskip("botocore.session", reason="needs the extra aws")

PLACE = JobPlace("us-east-1", "arn:aws:iam::123456789012:role/skytune-aws", "s3://bucket/runs")
KEY = "a-run-0123456789ab"


def request(key: str = KEY, instance: str = "ml.g5.2xlarge", spot: bool = False, **groups: Any) -> dict[str, Any]:
    compute = {"instance_type": instance, **groups.pop("compute", {})}
    config = from_dict(RunConfig, {"compute": compute, **groups})
    check(config.compute, config.sagemaker)
    return training_job(
        config, config.compute, PLACE, key, job_name(key, "261129120000"), launch_id="0" * 32, spot=spot
    )


def test_two_jobs_of_one_second_have_two_names() -> None:
    first = new_name(KEY, "")
    second = new_name(KEY, first)
    assert first != second and second.startswith(f"skytune-{KEY}-")


def members(operation: str) -> Any:
    model = botocore_session.get_session().get_service_model("sagemaker")
    return model.operation_model(operation).input_shape


@given(
    key=st.from_regex(r"[a-z0-9._-]{1,60}-[0-9a-f]{12}", fullmatch=True),
    nodes=st.integers(1, 8),
    disk=st.integers(1, 16384),
    hours=st.floats(0.2, 28 * 24),
    keep=st.sampled_from([None, "90s", "30m", "6h"]),
    spot=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_request_fits_the_services_model_and_the_documented_limits(
    key: str, nodes: int, disk: int, hours: float, keep: str | None, spot: bool
) -> None:
    from botocore.validate import validate_parameters

    asked = {"max_hours": hours, "keep_alive": None if spot else keep}
    made = request(key, "ml.g5.12xlarge", spot, compute={"num_nodes": nodes, "disk_size": disk}, sagemaker=asked)
    validate_parameters(made, members("CreateTrainingJob"))
    # https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html and what it links to
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", made["TrainingJobName"])
    kind, limits = made["ResourceConfig"], made["StoppingCondition"]
    assert kind["InstanceCount"] == nodes and 1 <= kind["VolumeSizeInGB"] <= 16384
    assert 0 < kind.get("KeepAlivePeriodInSeconds", 1) <= 21600
    assert 1 <= limits["MaxRuntimeInSeconds"] <= 2419200  # 28 days
    assert limits.get("MaxWaitTimeInSeconds", float("inf")) >= limits["MaxRuntimeInSeconds"]
    assert ("MaxWaitTimeInSeconds" in limits) == spot == made["EnableManagedSpotTraining"]
    assert len(made["Environment"]) <= 100
    for name, value in made["Environment"].items():
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) and len(value) <= 512
    assert all(len(word) <= 256 for word in made["AlgorithmSpecification"]["ContainerEntrypoint"])
    assert len(made["AlgorithmSpecification"]["TrainingImage"]) <= 255
    assert len(made["OutputDataConfig"]["S3OutputPath"]) <= 1024
    assert "CheckpointConfig" not in made  # checkpoints are ours: SageMaker syncs no folder of them


def test_ranks_and_gpus_follow_the_machine() -> None:
    made = request(instance="ml.p4d.24xlarge", compute={"num_nodes": 2})
    assert made["ResourceConfig"]["InstanceCount"] == 2
    assert (made["Environment"]["SKYTUNE_PROCESSES_EACH"], made["Environment"]["SKYTUNE_GPUS_EACH"]) == ("8", "8")
    assert "-gpu-py312-" in made["AlgorithmSpecification"]["TrainingImage"]
    made = request(instance="ml.m5.large")
    assert (made["Environment"]["SKYTUNE_PROCESSES_EACH"], made["Environment"]["SKYTUNE_GPUS_EACH"]) == ("1", "0")
    assert "-cpu-py312-" in made["AlgorithmSpecification"]["TrainingImage"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RoleArn": "me"}, "RoleArn is me, allowed are 20 to 2048 of them"),
        ({"RoleArn": "arn:aws:iam::1:role/a-role"}, "RoleArn=arn:aws:iam::1:role/a-role does not fit arn:aws"),
        ({"TrainingJobName": "a" * 64}, "TrainingJobName is a{64}, allowed are 1 to 63 of them"),
        ({"TrainingJobName": "a_b"}, "TrainingJobName=a_b does not fit"),
        ({"ResourceConfig": {"InstanceType": "ml.g5.3xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}}, "near: ml.g5"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, "MaxRuntimeInSeconds is 0, allowed are 1 to inf"),
        ({"Environment": {"A": "x" * 513}}, r"Environment\.A is x+\.\.\., allowed are 0 to 512 of them"),
        ({"Environment": {"1A": "x"}}, "Environment 1A=1A does not fit"),
    ],
)
def test_what_the_service_would_refuse_is_refused_before(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^SageMaker takes no such job: .*{message}"):
        checked({**request(), **change})


@pytest.mark.parametrize(
    ("compute", "sagemaker", "message"),
    [
        (
            {"instance_type": "ml.g5.2xlarge"},
            {"distribution": "smddp"},
            "smddp: ml.g5.2xlarge does not have it, only ml.p4",
        ),
        ({"instance_type": "ml.p4d.24xlarge", "device": "cpu"}, {"distribution": "smddp"}, "needs GPUs"),
        ({"instance_type": "ml.g5.2xlarge", "use_spot": True}, {"keep_alive": "30m"}, "keeps no spot machines"),
        ({"instance_type": "ml.g5.2xlarge", "cpus": 4}, {}, "compute.cpus=4: has no effect on SageMaker"),
        ({"instance_type": "ml.g5.2xlarge", "zone": "us-east-1a"}, {}, "compute.zone=us-east-1a: has no effect"),
        ({"instance_type": "ml.g5.2xlarge"}, {"max_hours": 0.1}, "must be more than twice sagemaker.save_minutes=5"),
    ],
)
def test_what_sagemaker_does_not_do_is_said_with_its_key(compute: Any, sagemaker: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(ComputeConfig(**compute), SageMakerConfig(**sagemaker))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_alive": "7h"}, "sagemaker.keep_alive=7h: at most 6h"),
        ({"max_hours": 0}, "sagemaker.max_hours=0: must be above 0"),
        ({"max_wait_hours": 2.0}, "sagemaker.max_wait_hours=2: must be at least sagemaker.max_hours=24"),
        ({"subnets": ["subnet-1"]}, "only together"),
        ({"regions": {"us-west-2": "bucket"}}, "sagemaker.regions.us-west-2=bucket: a bucket there is meant"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SageMakerConfig(**values)


def test_smddp_takes_an_image_of_the_users_and_says_so_to_the_workers() -> None:
    for instance in SMDDP:
        check(ComputeConfig(instance_type=instance), SageMakerConfig(distribution="smddp"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"smddp needs sagemaker\.image="):
        request(instance="ml.p4d.24xlarge", sagemaker={"distribution": "smddp"})
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:smddp"
    made = request(instance="ml.p4d.24xlarge", sagemaker={"distribution": "smddp", "image": image})
    assert made["AlgorithmSpecification"]["TrainingImage"] == image
    assert made["Environment"]["SKYTUNE_BACKEND"] == "smddp"


def test_images_by_region() -> None:
    plain = SageMakerConfig()
    assert image_of("eu-south-1", 1, plain).startswith(
        "692866216735.dkr.ecr.eu-south-1.amazonaws.com/pytorch-training:2"
    )
    assert image_of("cn-north-1", 0, plain).startswith("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/")
    with pytest.raises(ConfigError, match=r"region mars-1: .*sagemaker\.image= names one"):
        image_of("mars-1", 1, plain)


def test_accelerators_that_torch_does_not_know_are_refused() -> None:
    assert [gpus_of(name) for name in ("ml.g5.48xlarge", "ml.c5.xlarge", "ml.p5.4xlarge")] == [
        8,
        0,
        1,
    ]
    with pytest.raises(ConfigError, match=r"ml\.trn1\.2xlarge: has AWS's own accelerators"):
        gpus_of("ml.trn1.2xlarge")


def test_names_of_one_runs_jobs_differ_and_hold_its_hash() -> None:
    one, other = (job_name("Ünusual_name.with-dots-0123456789ab", stamp) for stamp in ("1", "2"))
    assert one != other and "-0123456789ab-" in one and one.startswith("skytune-nusual-name-with-dots-")


def test_where_it_trains_is_no_part_of_what_a_run_is() -> None:
    plain = from_dict(RunConfig, {})
    there = from_dict(
        RunConfig, {"compute": {"instance_type": "ml.g5.2xlarge"}, "sagemaker": {"max_hours": 2.0}, "dry_run": True}
    )
    assert identity_config(plain) == identity_config(there)
