"""What ZenML's cache does not see by itself: that the files of a result it would reuse are gone or damaged."""

import json
import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from zenml.client import Client

log = logging.getLogger(__name__)

UNUSABLE = re.compile(r"the artifact's files at (.+) are (gone|damaged)")
"""What loading such an artifact says (`materializers.files`), in this process or in a step's own."""

STEPS = ("load_data", "train_model", "evaluate_model")


def expire_lost(client: "Client", names: tuple[str, ...] = STEPS, newest: int = 200) -> list[str]:
    """Expire completed step runs of which an output's files are gone, so that they run again; return their names.

    Only the newest `newest` step runs are looked at: on a remote store every look is a request.
    """
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
            _expire(client, run.id)
            lost.append(run.name)
    return lost


def expire_unusable(client: "Client", error: Exception) -> bool:
    """Expire the step that made the artifact that an error calls gone or damaged; return whether there is one."""
    found = UNUSABLE.search(str(error))
    artifacts = client.list_artifact_versions(uri=found[1], hydrate=True).items if found else []
    makers = {artifact.producer_step_run_id for artifact in artifacts} - {None}
    for maker in makers:
        _expire(client, maker)
    if found and makers:
        log.warning("cache: the files at %s are %s: the step that made them runs again", *found.groups())
    return bool(makers)


def _expire(client: "Client", step_run: "UUID") -> None:
    from zenml.utils.time_utils import utc_now

    client.update_step_run(step_run, cache_expires_at=utc_now() - timedelta(seconds=1))


def _there(store: object, uri: str) -> bool:
    """Whether an artifact's folder is there and holds something (deleting its files alone leaves an empty folder)."""
    return bool(store.exists(uri) and store.listdir(uri))  # type: ignore[attr-defined]
