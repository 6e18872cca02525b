"""Rows by source: an installed package, the Hugging Face Hub, files, or a function of the user's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config import DataConfig, DataSource, UserError
from ..config.targets import instantiate
from ..models.hashing import hash_target, hash_values
from ..models.hub import commit_of, not_reachable, one_line
from ..models.quiet import quiet
from .adapt import as_dataset, from_dataset
from .columns import Columns, text_columns
from .files import hash_files, looks_like_file, read_files, read_head
from .images import image_column, look_at, split_folder
from .packaged import packaged_part, read, version
from .rows import Rows


class Source:
    """Reads splits of one data set; what is the same for all of them is opened once."""

    def __init__(self, config: DataConfig, columns: Columns | None = None) -> None:
        self.config = config
        self.columns = text_columns(config) if columns is None else columns
        self.malformed = 0
        self._builder: Any = None
        self._own: dict[str, Any] | None = None

    def split(self, spec: str, key: str, name: str) -> Rows:
        """Return the rows of one split.

        Args:
            spec: split name, or path, glob or URL of files (these work with every source).
            key: configuration key that `spec` came from, for messages.
            name: what the split is called here (`train`, `validation`, `test`, or a set's name).

        Raises:
            UserError: no such split, file, package or column.
            NotReachable: a data set on the Hub, which does not answer.
        """
        source = self.config.source
        if self.is_file(spec):
            spec = self._folder(spec, name)
            rows, malformed = read_files(spec, self.config, key, name, self.columns)
            self.malformed += malformed
            return rows
        if source is DataSource.packaged:
            return read(self.config, spec, key, name, self.columns)
        return self._hub(spec, key, name) if source is DataSource.hub else self._target(spec, key, name)

    def head(self, spec: str) -> Rows:
        """Return the first rows of the train split, of some sources all; arguments and errors as those of `split`."""
        if self.is_file(spec):
            spec = self._folder(spec, "train")
            return read_head(spec, self.config, "data.train", self.columns)
        return self.split(spec, "data.train", "train")

    def offers(self, name: str) -> bool:
        """Return whether there is a split of this name that was not asked for: a function of the user's own brought it,
        or it lies beside train in a folder of images."""
        if self.config.source is DataSource.files:
            return bool(self.config.train) and split_folder(self.config.train, name) is not None
        return self.config.source is DataSource.target and name in self._splits()

    def _folder(self, spec: str, name: str) -> str:
        """Return where the images of a split lie, of a folder of splits or of a split that such a folder offers."""
        return split_folder(self.config.train if spec == name else spec, name) or spec

    def fingerprint(self, sets: dict[str, str]) -> str:
        """Return a hash of everything that the splits are read from, without parsing any of it.

        Files count by content (remote ones by their store's checksum and size where it has one), data sets on the Hub
        by commit, packaged ones by version, a function of one's own by its code, its arguments and `data.version`.

        Args:
            sets: further evaluation sets (`eval.sets`), by name.

        Raises:
            UserError: a file or package that is not there.
            NotReachable: a data set on the Hub, which does not answer, and there is no copy on this disk.
        """
        config, source = self.config, self.config.source
        found: list[Any] = [config.version]
        splits = {"data.train": config.train, "data.validation": config.validation, "data.test": config.test}
        for key, spec in (splits | {f"eval.sets.{name}": spec for name, spec in sorted(sets.items())}).items():
            if not spec:
                continue
            if self.is_file(spec):
                found.append([key, hash_files(spec, key), *self.hash_images(spec, key)])
                continue
            found.append([key, spec])
            if source is DataSource.packaged:
                found.append(packaged_part(config, spec, key)[1])
        if source is DataSource.packaged:
            found += [config.name, version(config)]
        elif source is DataSource.hub:
            found += [config.name, config.subset, commit_of("dataset", config.name, config.revision)[0]]
        elif source is DataSource.target:
            found.append(hash_target(str(config._target_), config.args, "data._target_"))
        return hash_values(found)

    def hash_images(self, spec: str, key: str) -> list[str]:
        """Return a hash of the images that a table names; none where `data.image` names no column of it."""
        if self.config.image is None:
            return []
        rows = read_files(spec, self.config, key, key, (image_column(self.config),))[0]
        return [hash_values([key for _, key, _ in look_at(rows, self.config, lambda data: "")[1]])]

    def is_file(self, spec: str) -> bool:
        """Return whether a split is read from files, rather than by its name."""
        return self.config.source is DataSource.files or looks_like_file(spec)

    def _hub(self, spec: str, key: str, name: str) -> Rows:
        config = self.config
        commit, online = commit_of("dataset", config.name, config.revision)
        import datasets

        try:
            with one_line("dataset", config.name, config.revision), quiet("datasets", "huggingface_hub"):
                with _offline(not online):
                    if self._builder is None:  # once for all splits: finding the files takes many requests
                        builder = datasets.load_dataset_builder(config.name, config.subset, revision=commit)
                        builder.download_and_prepare()
                        self._builder = builder
                    loaded = self._builder.as_dataset(split=spec)
        except UserError:
            raise
        except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            lost = "client has been closed" in str(error)  # what is left when the connection breaks while it retries
            if lost or (not online and isinstance(error, FileNotFoundError)):
                raise not_reachable("dataset", config.name) from error
            raise UserError(f"{key}={spec} of data.name={config.name}: {_hub_reason(error)}") from error
        files = [str(entry["filename"]) for entry in loaded.cache_files]
        if not online and files and commit not in files[0]:  # offline, the library takes any commit it has
            raise not_reachable("dataset", config.name)
        return from_dataset(loaded, config, name, self.columns)

    def _splits(self) -> dict[str, Any]:
        if self._own is None:
            target = str(self.config._target_)
            made = instantiate(target, self.config.args, key="data._target_")
            whole = not isinstance(made, dict)
            self._own = {self.config.train: made} if whole else {str(name): split for name, split in made.items()}
        return self._own

    def _target(self, spec: str, key: str, name: str) -> Rows:
        splits = self._splits()
        if spec not in splits:
            target = self.config._target_
            raise UserError(f"{key}={spec}: data._target_={target} returned no such split, only {', '.join(splits)}")
        dataset = as_dataset(splits[spec], str(self.config._target_))
        return from_dataset(dataset, self.config, name, self.columns)


@contextmanager
def _offline(on: bool) -> Iterator[None]:
    """Make the Hub's clients look only at this disk: after the Hub did not answer, each further try costs seconds."""
    import datasets
    import huggingface_hub

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    if on:
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before


def _hub_reason(error: BaseException) -> str:
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    hint = " (data.subset names the configuration)" if "onfig" in text else ""
    return (text[:300] or type(error).__name__) + hint
