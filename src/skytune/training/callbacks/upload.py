"""Copies the trained model to where it is wanted when the run ends: any fsspec URL, or a repository on the Hub."""

import logging
import os
import time
from pathlib import Path

from ...checkpoint.backends.hub import LIBRARY, be_patient
from ...checkpoint.retry import Retry, explain
from ...config import UploadConfig, UserError
from ...config.secrets import reveal
from .base import Callback, Run

log = logging.getLogger(__name__)


class Upload(Callback):
    """Uploads `run.job.model` from rank 0. A failure is told, in `result.json` too; the model stays where it is."""

    def __init__(self, config: UploadConfig, retry: Retry | None = None) -> None:
        assert config.url is not None
        self.url, self.private, self.retry = config.url, config.private, retry or Retry()

    def on_run_start(self, run: Run) -> None:
        """Refuse an address of a kind that nobody here can write to, before hours of training."""
        if not run.world.main or self.url.startswith("hf://"):
            return
        import fsspec

        try:
            fsspec.get_filesystem_class(self.url.partition("://")[0] if "://" in self.url else "file")
        except (ValueError, ImportError) as error:
            raise UserError(f"upload.url={self.url}: {error}") from error

    def on_model_saved(self, run: Run) -> None:
        """Upload."""
        if not run.world.main:
            return
        folder, start = run.job.model, time.monotonic()
        upload = self._to_hub if self.url.startswith("hf://") else self._to_files
        try:
            self.retry.call(lambda: upload(folder), self.url, "uploading the model")
        except Exception as error:
            reason = str(explain(error, self.url, "uploading the model"))
            run.report["upload_failed"] = reason
            log.warning("MODEL NOT UPLOADED, %s; it lies in %s", reason, folder)
            return
        run.report["uploaded"] = self.url
        size = sum(file.stat().st_size for file in folder.rglob("*"))
        log.info("uploaded the model to %s (%.0f MB in %.1f s)", self.url, size / 1e6, time.monotonic() - start)

    def _to_files(self, folder: Path) -> None:
        import fsspec

        system, root = fsspec.core.url_to_fs(reveal(self.url))
        root = root.rstrip("/")
        files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        # Whoever finds the configuration finds the weights as well.
        for file in sorted(files, key=lambda file: (file.name == "config.json", str(file))):
            target = f"{root}/{file.as_posix()}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.put_file(str(folder / file), target)

    def _to_hub(self, folder: Path) -> None:
        from huggingface_hub import HfApi

        user, name, *rest = self.url.removeprefix("hf://").strip("/").split("/")
        be_patient(60.0)
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name=LIBRARY)
        api.create_repo(f"{user}/{name}", private=self.private, exist_ok=True)
        api.upload_folder(
            repo_id=f"{user}/{name}",
            folder_path=folder,
            path_in_repo="/".join(rest) or None,
            commit_message="Upload the trained model",
        )
