"""Types known by their name, so that a materializer can say what it stores without importing datasets or transformers.

ZenML wants classes in `ASSOCIATED_TYPES` and looks classes up in its registry. Importing those of the Hugging Face
libraries costs 1.4 s (datasets) to 4.6 s (transformers with torch), which every command would pay, also one whose
steps are all cached. A named type stands for such a class and answers `issubclass` by comparing dotted names.
"""

from typing import Any


class _NamedMeta(type):
    path: str

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or any(dotted_name(base) == cls.path for base in getattr(subclass, "__mro__", ()))

    def __instancecheck__(cls, instance: Any) -> bool:
        return issubclass(type(instance), cls)


def named_type(path: str) -> type:
    """Return a class that every subclass of the class at `path` (`package.module.Class`) counts as a subclass of."""
    return _NamedMeta(path.rpartition(".")[2], (), {"path": path, "__doc__": f"Stands for {path}."})


def dotted_name(cls: type) -> str:
    """Return `package.module.Class`."""
    return f"{cls.__module__}.{cls.__qualname__}"


class ByName(dict[type, Any]):
    """A materializer registry's table that knows some classes by their dotted name, and prefers those."""

    def __init__(self, types: dict[type, Any], names: dict[str, Any]) -> None:
        super().__init__(types)
        self.names = names

    def get(self, key: type, default: Any = None) -> Any:
        """Return the materializer of exactly this class; ZenML asks for each class of the MRO in turn."""
        return self.names.get(dotted_name(key)) or super().get(key, default)
