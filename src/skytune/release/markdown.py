"""Texts of anybody (class names, paths, columns of a file) in Markdown and YAML, where they stay texts."""

import re

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!@$^]|(?<!\d):(?!\s|$)|(?i:\bwww\b))")
"""What GitHub's Markdown, or the Hub's with its formulas, reads as something else; an address becomes no link, `:+1:`
no picture; the colons of a time stay."""


def plain(text: object) -> str:
    """Return a text as one line without control characters, for YAML."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(str(text).split())).strip()


def escaped(text: object) -> str:
    """Return a text as Markdown that shows it as it is, in one line: in a paragraph, a cell of a table, a heading."""
    return SPECIAL.sub(lambda match: f"\\{match[0]}" if len(match[0]) == 1 else f"{match[0]}&#8203;", plain(text))


def fenced(text: str) -> str:
    """Return a text, of several lines perhaps, as a block of code that it cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
