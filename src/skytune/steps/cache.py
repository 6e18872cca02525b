"""What ZenML's cache does not see by itself: that the files of a result it would reuse are gone."""

import json
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zenml.client import Client

STEPS = ("load_data", "train_model", "evaluate_model")


def expire_lost(client: "Client", names: tuple[str, ...] = STEPS, newest: int = 200) -> list[str]:
    """Expire completed step runs of which an output's files are gone, so that they run again; return their names.

    Only the newest `newest` step runs are looked at: on a remote store every look is a request.
    """
    from zenml.utils.time_utils import utc_now

    store = client.active_stack.artifact_store
    lost = []
    runs = client.list_run_steps(
        name="oneof:" + json.dumps(list(names)),
        status="completed",
        cache_expired=False,
        sort_by="desc:created",
        size=newest,
        hydrate=True,
    )
    for run in runs.items:
        uris = [v.uri for versions in run.outputs.values() for v in versions if v.artifact_store_id == store.id]
        if not all(_there(store, uri) for uri in uris):
            client.update_step_run(run.id, cache_expires_at=utc_now() - timedelta(seconds=1))
            lost.append(run.name)
    return lost


def _there(store: object, uri: str) -> bool:
    """Whether an artifact's folder is there and holds something (deleting its files alone leaves an empty folder)."""
    return bool(store.exists(uri) and store.listdir(uri))  # type: ignore[attr-defined]
