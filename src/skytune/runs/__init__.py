"""The room of runs: what lies in the folder of runs, listed, compared, reproduced and taken away. Knows no ZenML: who
calls it says what else belongs to a run."""
