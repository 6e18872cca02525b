"""The room of searches: a space of hyperparameters, who proposes settings, successive halving, and what was found.

A trial is a cell of the room of studies, run and written down as those are. Optuna proposes, and is imported only then.
"""

from .driver import Search, run_search
from .results import checked_plan, draw, findings, results, summary, taken
