"""An experiment whose cells run on machines of the stand-in: two at once, one of them on two spot nodes."""

from collections.abc import Callable
from typing import Any

import pytest
from farm import Farm
from project import Project

pytestmark = pytest.mark.soak

READ = """
import json, sys
import pandas as pd
table = pd.read_csv(sys.argv[1])
print(json.dumps(json.loads(table.to_json(orient="records"))))
"""


def test_cells_run_on_their_machines_and_cost_what_skypilot_says(
    farm: Farm, new_project: Callable[..., Project], small: list[str]
) -> None:
    import json

    project = new_project(infra="aws/us-east-1", instance_type="m5.large")
    before = farm.instances(gone=True)
    design = [
        "pipeline=study",
        "study.name=farm",
        "study.parallel=2",
        "study.max_usd=1",
        "study.factors={compute: [m6i.large, 'm6i.large x 2 spot']}",
        "study.price_source=skypilot",
        "study.machines={m6i.large: {accelerator: cpu, devices: 1}}",
        "compute.region=us-east-1",
    ]
    plan = project.run(*small, *design, "study.dry_run=true")
    assert plan.code == 0 and "m6i.large x 2 spot" in plan.out and "$0.096" in plan.out, plan.out
    assert "sky-payload" not in plan.out
    assert not farm.since(before), "a plan launches nothing"
    done = project.run(*small, *design, timeout=1500)
    assert done.code == 0, done.out
    machines = farm.since(before)
    assert sorted((each.type, each.spot) for each in machines) == [
        ("m6i.large", False),
        ("m6i.large", True),
        ("m6i.large", True),
    ]
    assert not any(each.running for each in machines)
    table = str(project.home / "benchmarks" / "farm" / "results.csv")
    rows: list[dict[str, Any]] = json.loads(project.python("-c", READ, table).splitlines()[-1])
    assert [(row["status"], row["devices"], row["nodes"], row["attempts"]) for row in rows] == [
        ("done", 1, 1, 1),
        ("done", 2, 2, 1),
    ]
    for row in rows:
        assert (
            row["provision_s"] > 0 and row["setup_s"] > 0 and row["train_s"] > 0 and row["price_source"] == "SkyPilot"
        )
        assert row["usd_total"] == pytest.approx(row["total_s"] / 3600 * row["usd_per_hour"] * row["nodes"], rel=0.01)
    again = project.run(*small, *design)
    assert again.code == 0 and len(farm.since(before)) == 3, "finished cells never run again"
