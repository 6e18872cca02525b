"""Rungs, and who goes on."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skytune.search.ladder import Ladder, best, ladder_of, promotable


def test_27_trials_by_3_stand_on_four_rungs() -> None:
    ladder = ladder_of(3, None, 27)
    assert (ladder.rungs, [ladder.places(rung, 27) for rung in range(4)]) == (4, [27, 9, 3, 1])
    assert [ladder.stop_at(rung, 54) for rung in range(4)] == [2, 6, 18, None]
    assert [ladder.places(rung, 64) for rung in range(4)] == [64, 21, 7, 2], "extended, on the same rungs"


@given(st.integers(2, 5), st.integers(1, 200), st.integers(1, 10_000))
def test_rungs_rise_and_leave_one_trial_at_least(eta: int, trials: int, steps: int) -> None:
    ladder = ladder_of(eta, None, trials)
    stops = [ladder.stop_at(rung, steps) or steps for rung in range(ladder.rungs)]
    assert stops == sorted(stops) and stops[0] >= 1 and stops[-1] == steps
    places = [ladder.places(rung, trials) for rung in range(ladder.rungs)]
    assert places == sorted(places, reverse=True) and places[-1] >= 1
    assert all(below // eta == above for below, above in pairwise(places) if below == eta * above)


@given(st.dictionaries(st.integers(0, 30), st.one_of(st.none(), st.floats(0, 1))), st.integers(1, 9), st.booleans())
def test_the_best_are_the_best_whatever_the_order_of_their_ends(
    scores: dict[int, float | None], places: int, maximize: bool
) -> None:
    found = best(scores, places, maximize=maximize)
    assert found == best(dict(reversed(scores.items())), places, maximize=maximize)
    known = {number: score for number, score in scores.items() if score is not None}
    assert len(found) == min(places, len(known))
    others = [known[number] for number in known if number not in found]
    for number in found:
        assert all(known[number] >= other if maximize else known[number] <= other for other in others)


def test_without_waiting_the_best_one_in_eta_goes_on_once() -> None:
    standing = [{0: 0.5, 1: 0.9, 2: 0.7}, {}, {}]
    assert promotable(standing, 3, maximize=True) == (1, 1)
    standing[1] = {1: None}  # on its way
    assert promotable(standing, 3, maximize=True) is None
    assert Ladder().stop_at(0, 10) is None
