"""How to add an extra of this package, for messages. Never by name from an index: the name is not ours there, and who
asked an index for it would get whatever somebody put under it."""


def add_extra(extra: str) -> str:
    """Return the command that installs what an extra needs, with the pinned versions, into the Python that is used."""
    return f"pip install -c constraints.txt -e '.[{extra}]' in the clone"
