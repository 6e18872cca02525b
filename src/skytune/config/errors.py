"""Errors that a person can act on: shown as one line, without a traceback, with exit code 1."""


class UserError(Exception):
    """Something outside the program is wrong (input, machine, network); the message names it and the way out."""


class ConfigError(UserError, ValueError):
    """A configuration value is unknown, of the wrong type or impossible; the message starts with its key."""


class NotReachable(UserError):
    """A hub, a store or a machine does not answer; the message names the ways to go on without it."""


class Preempted(UserError):
    """The run was told to end, and has saved where it stands: the same command continues it."""


class Detached(UserError):
    """The job runs on elsewhere, as was asked for; the message says how to come back to it."""


class WorkerError(UserError):
    """A worker process ended badly; the message holds the last lines of its log."""

    killed = False
    """Whether it was killed (by the kernel, or by somebody), so that it is not said that it would end so again."""
