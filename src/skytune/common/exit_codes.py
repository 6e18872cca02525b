"""How a command says by its exit code what became of it."""

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_PREEMPTED = 75
"""Asked to stop by the machine's manager: the same command goes on."""
EXIT_NOT_SAVED = 76
"""Trained, but the last checkpoint could not be saved."""
EXIT_INTERRUPTED = 130
"""Ctrl-C."""
