"""What SageMaker asks for an hour of training on its instances: more than EC2 does for the same machine."""

from ..config.schema.sagemaker import PREFIX

DATE = "2026-09-01"

REGIONS = ("us-east-1", "us-east-2", "us-west-2")
"""Where the table holds: AWS asks for the same in these."""

ML_PRICES: dict[str, float] = {
    f"{PREFIX}{name}": usd
    for name, usd in {
        "m5.large": 0.115,
        "m5.xlarge": 0.23,
        "m5.2xlarge": 0.461,
        "m5.4xlarge": 0.922,
        "c5.xlarge": 0.204,
        "c5.2xlarge": 0.408,
        "g4dn.xlarge": 0.7364,
        "g4dn.2xlarge": 0.94,
        "g4dn.12xlarge": 4.89,
        "g5.xlarge": 1.4084,
        "g5.2xlarge": 1.515,
        "g5.4xlarge": 2.03,
        "g5.8xlarge": 3.06,
        "g5.12xlarge": 7.09,
        "g5.24xlarge": 10.18,
        "g5.48xlarge": 20.36,
        "g6.xlarge": 1.127,
        "g6.2xlarge": 1.222,
        "g6.4xlarge": 1.654,
        "g6.12xlarge": 5.752,
        "g6.24xlarge": 8.344,
        "g6.48xlarge": 16.688,
        "p3.2xlarge": 3.825,
        "p3.8xlarge": 14.688,
        "p3.16xlarge": 28.152,
        "p4d.24xlarge": 25.251286,
        "p5.48xlarge": 63.296,
    }.items()
}
"""USD an hour on demand. From AWS's price list for AmazonSageMaker in us-west-2 as of `DATE`, by a public table that is
read from it; g4dn.12xlarge and p3 from tables that agree with each other, among them that of
aws-samples/foundation-model-benchmarking-tool (p3 is being retired). What is not here is unknown, not guessed:
`sagemaker.price_per_hour` says it, or AWS is asked (`stack.py check`, `study.price_source=aws`)."""

SOURCE = f"SageMaker's price list, {DATE}"


def listed_price(instance: str, region: str) -> float | None:
    """Return the table's price of an instance in a region; None where it has none."""
    return ML_PRICES.get(instance) if region in REGIONS else None
