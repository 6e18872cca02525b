"""The room of experiments: a design's cells, what they are expected to cost, running them, and the table of results.

Plain functions on plain files; the steps around them are thin. Prices are looked up and worker processes are run by the
room of launchers; what the numbers mean (cost, fit, findings, figures) is the room of reports' affair.
"""

from .cells import Cell, cells_of
from .plan import Plan, make_plan, plan_text
from .results import draw, results, summary
from .runner import run_experiment
from .store import ResultsStore
from .table import COLUMNS, frame, write_table
