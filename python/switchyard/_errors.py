"""The errors of the package. `str()` of one is the engine's line."""

from __future__ import annotations


class Error(RuntimeError):
    """What the engine could not do."""


class UsageError(Error, ValueError):
    """A wrong setting, file or argument, found before any work. The engine is as it was.

    `key`, `value` and `expected` say which key of the settings or of sampling is meant, what it was given, and what it
    takes in words (of an unknown key: the nearest known one); None where the engine's line names no single key.
    """

    def __init__(
        self, message: str, key: str | None = None, value: str | None = None, expected: str | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.value = value
        self.expected = expected


class RunError(Error):
    """A failure while working, such as a full disk or numbers that are not finite."""


class InternalError(Error):
    """A bug in the engine: the line has file, line and condition."""
