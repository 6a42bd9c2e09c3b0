"""The errors this package raises on purpose.

Wrong arguments of a library call are plain :class:`ValueError` and :class:`TypeError`, as in
PyTorch. The classes below say that something outside the call is wrong: a file, a configuration, a
checkpoint, a device, a compiler. The command line turns each of them into one line on stderr.
"""

from __future__ import annotations


class MaxKError(Exception):
    """Base of every typed error of this package."""


class DataError(MaxKError, ValueError):
    """A file or data set is broken, inconsistent or unknown."""


class ConfigError(MaxKError, ValueError):
    """A configuration value, flag or recipe is wrong."""


class CheckpointError(MaxKError, ValueError):
    """A run folder or checkpoint is missing, truncated or foreign."""


class DeviceError(MaxKError, RuntimeError):
    """A device was asked for that cannot be used, or it failed."""


class CompileError(MaxKError, RuntimeError):
    """A kernel did not compile; the message carries the compiler's log."""


class TrainingError(MaxKError, RuntimeError):
    """Training cannot go on, for example because the loss is no longer finite."""
