"""The room of reports: what a run achieved, as JSON beside the model, as one HTML page, and as text in a terminal."""

from .page import build_report
from .scoring import write_results
from .terminal import summary
