"""The errors that kvbench raises and their exit codes.

Every message names the offending value, what is allowed and the way out. The command line prints the message as one
line and exits with `exit_code`; no traceback reaches a user.
"""


class KvbenchError(Exception):
    """Anything kvbench itself reports to its user."""

    exit_code = 2


class UsageError(KvbenchError):
    """Wrong usage: an unknown adapter, model, suite, option or value."""


class InputError(KvbenchError):
    """A file from outside (trace, counterexample, result folder) that cannot be read as what it should be."""


class AdapterError(KvbenchError):
    """An adapter that cannot be started here: not installed, broken on import, incomplete, or declaring nonsense."""

    exit_code = 3


class CacheError(KvbenchError):
    """What a cache reports to its caller when it refuses an operation."""


class OutOfBlocks(CacheError):
    """Not enough blocks. The refused operation has left everything as it was before the call."""


class UnknownSequence(CacheError):
    """An operation names a sequence that the manager does not hold (or one that it holds already)."""


class InvalidRequest(CacheError):
    """An operation whose arguments no cache could serve: a negative length, a block outside the pool, a wrong shape."""


class Unsupported(CacheError):
    """An input outside the declared capabilities, refused clearly instead of being answered with garbage."""
