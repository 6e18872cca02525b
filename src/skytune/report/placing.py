"""Where notes stand in a figure: beside their points, clear of each other, of other points and, if there is room, of
lines. Lengths are pixels at 72 an inch, from the lower left."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

AWAY = (5.0, 10.0, 16.0)
"""How far a note may be from its point."""

APART = 1.0
"""The least room between two notes."""

DOT = 4.5
"""Half the width of a point."""

EVERY = 3.0
"""Between two looks at a line."""


@dataclass(frozen=True)
class Note:
    """Something to be written at a point."""

    point: Point
    width: float
    height: float


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box", margin: float = 0.0) -> bool:
        """Return whether they overlap, or are no further apart than `margin`."""
        return (
            self.left <= other.right + margin
            and other.left <= self.right + margin
            and self.bottom <= other.top + margin
            and other.bottom <= self.top + margin
        )

    def holds(self, point: Point, margin: float = 0.0) -> bool:
        """Return whether a point lies inside, or no further away than `margin`."""
        return (
            self.left - margin <= point[0] <= self.right + margin
            and self.bottom - margin <= point[1] <= self.top + margin
        )


def place(
    notes: Sequence[Note], area: Box, points: Sequence[Point], lines: Sequence[Sequence[Point]]
) -> list[Point | None]:
    """Return the lower left corner of each note, None for one that would lie on another or outside the area.

    They are placed one after the other, each where it is least in the way: no best solution, but nobody's text is lost
    under another's.
    """
    taken: list[Box] = []
    found: list[Point | None] = []
    spots = [spot for line in lines for spot in _along(line)]
    for note in notes:
        best: tuple[float, Box] | None = None
        for rank, box in enumerate(_candidates(note)):
            if any(box.meets(other, APART) for other in taken) or not _within(box, area):
                continue
            bad = 1000.0 * sum(box.holds(point, DOT) for point in points) + 10.0 * sum(map(box.holds, spots)) + rank
            if best is None or bad < best[0]:
                best = bad, box
        found.append(None if best is None else (best[1].left, best[1].bottom))
        if best is not None:
            taken.append(best[1])
    return found


def _candidates(note: Note) -> list[Box]:
    (x, y), found = note.point, []
    for away in AWAY:
        right, left, middle = x + away, x - away - note.width, x - note.width / 2
        above, below, level = y + away, y - away - note.height, y - note.height / 2
        for corner in (
            (right, above - 3),
            (left, above - 3),
            (right, below + 3),
            (left, below + 3),
            (middle, above),
            (middle, below),
            (right, level),
            (left, level),
        ):
            found.append(Box(corner[0], corner[1], corner[0] + note.width, corner[1] + note.height))
    return found


def _within(box: Box, area: Box) -> bool:
    return (
        box.left >= area.left
        and box.right <= area.right
        and box.bottom >= area.bottom
        and box.top <= area.top + box.top - box.bottom
    )  # a line of text above is free


def _along(line: Sequence[Point]) -> list[Point]:
    found = []
    for (x, y), (to_x, to_y) in pairwise(line):
        if all(map(math.isfinite, (x, y, to_x, to_y))):
            parts = max(1, int(math.hypot(to_x - x, to_y - y) / EVERY))
            found += [(x + (to_x - x) * i / parts, y + (to_y - y) * i / parts) for i in range(parts + 1)]
    return found
