"""SkyPilot's own SDK on the stand-in: `sky(farm, "launch", …)` calls a function of this file inside the farm.

There it is run as `python sdk.py FUNCTION '{"argument": ...}'`; the result is the last line of the output, as JSON, and
an error is {"error": [type, message]}.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm import Farm


def sky(farm: "Farm", function: str, timeout: float = 400, **arguments: Any) -> tuple[Any, str]:
    """Call a function of this file inside the farm; return its result and what was printed before."""
    from warmed import python

    began = time.monotonic()
    done = farm.run([*python(farm), __file__, function, json.dumps(arguments)], timeout=timeout)
    print(f"sky {function}: {time.monotonic() - began:.0f} s\n{done.stdout}")
    before, _, last = done.stdout.rstrip().rpartition("\n")
    assert done.returncode == 0, done.stdout
    return json.loads(last), before


def launch(cluster: str, run: str, num_nodes: int = 1, autodown: int | None = None, **resources: Any) -> dict[str, Any]:
    """Launch a cluster, run a script on every node of it, and wait for its end.

    With `autodown` it is to end by itself after so many idle minutes.
    """
    import sky

    task = sky.Task(name="job", run=f"set -e\n{run}", num_nodes=num_nodes)
    task.set_resources(sky.Resources(**resources))
    idle = {} if autodown is None else {"idle_minutes_to_autostop": autodown, "down": True}
    job, _ = sky.stream_and_get(sky.launch(task, cluster_name=cluster, **idle))
    return {"job": job, "code": sky.tail_logs(cluster, job, follow=True)}


def status(cluster: str) -> list[str]:
    """Return the cluster's status, asked anew of the cloud; nothing if it is gone."""
    import sky

    found = sky.get(sky.status([cluster], refresh=sky.StatusRefreshMode.FORCE))
    return [each["status"].value for each in found]


def autodown(cluster: str) -> list[Any]:
    """Return after how many idle minutes the cluster ends by itself, and whether it then ends for good."""
    import sky

    (found,) = sky.get(sky.status([cluster]))
    return [found["autostop"], found["to_down"]]


def down(cluster: str) -> list[str]:
    """Take the cluster down; return the names of those that are left."""
    import sky

    sky.get(sky.down(cluster))
    return [each["name"] for each in sky.get(sky.status())]


if __name__ == "__main__":
    try:
        result: Any = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    except Exception as error:
        result = {"error": [type(error).__name__, str(error)]}
    print(json.dumps(result))
