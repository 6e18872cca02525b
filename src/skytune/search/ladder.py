"""Successive halving (Karnin, Koren and Somekh 2013; Jamieson and Talwalkar 2016): where trials stop, and which go on.

A rung is a number of optimizer steps of the same run, with the same schedule: a trial that stops there has saved, and
one that is promoted goes on from there. Rung r of R trains the share eta^-(R-1-r) of a trial's steps; the last one is
all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search."""

    eta: int = 1
    """One in so many goes on; 1 where there is one rung alone."""

    rungs: int = 1

    def stop_at(self, rung: int, total_steps: int) -> int | None:
        """Return the optimizer step at which a trial stops at a rung; None where it trains to its end."""
        return None if rung >= self.rungs - 1 else -(-total_steps // self.eta ** (self.rungs - 1 - rung))

    def places(self, rung: int, trials: int) -> int:
        """Return how many of so many trials train up to a rung."""
        return trials if rung == 0 else max(1, trials // self.eta**rung)

    def share(self, rung: int) -> float:
        """Return the share of its steps that a trial has trained at a rung."""
        return float(self.eta) ** -(self.rungs - 1 - rung)


def ladder_of(halving: int | None, rungs: int | None, trials: int) -> Ladder:
    """Return the rungs for so many trials: as many as leave one trial at least for the last one."""
    if not halving:
        return Ladder()
    most = 1
    while trials >= halving**most:
        most += 1
    return Ladder(halving, min(rungs or most, most))


def best(scores: Mapping[int, float | None], places: int, *, maximize: bool) -> list[int]:
    """Return the numbers of the best trials, the best first; of equal ones the earlier. None is no score."""
    known = [(number, score) for number, score in scores.items() if score is not None and score == score]
    known.sort(key=lambda one: (-one[1] if maximize else one[1], one[0]))
    return [number for number, _ in known[:places]]


def promotable(standing: Sequence[Mapping[int, float | None]], eta: int, *, maximize: bool) -> tuple[int, int] | None:
    """Return the next trial that may go on without waiting for others, and to which rung (Li et al. 2020, ASHA): the
    best one in eta of those that stand at a rung, highest rungs first.

    Args:
        standing: scores by trial, for every rung.
    """
    for rung in range(len(standing) - 2, -1, -1):
        here = {number: score for number, score in standing[rung].items() if score is not None}
        for number in best(here, len(here) // eta, maximize=maximize):
            if number not in standing[rung + 1]:
                return number, rung + 1
    return None
