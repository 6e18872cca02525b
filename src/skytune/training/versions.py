"""The versions that decide results, as they are where a worker runs."""

import platform
from importlib import metadata

PACKAGES = ("skytune", "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "pyarrow")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide results, by name; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
