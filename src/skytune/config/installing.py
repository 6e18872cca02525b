"""How to add an extra of this package, for messages. Never by name from an index: the name is not ours there, and who
asked an index for it would get whatever somebody put under it."""

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import UserError


def add_extra(extra: str) -> str:
    """Return the command that installs what an extra needs, with the pinned versions, into the Python that is used."""
    return f"pip install -c constraints.txt -e '.[{extra}]' in the clone"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn an import that fails, of a package that an extra brings, into an error of one line.

    Raises:
        UserError: the package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise UserError(f"'{error.name}' is not installed: {add_extra(extra)}") from error
