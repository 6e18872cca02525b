"""What people type: `src/run.py` and the other commands."""
