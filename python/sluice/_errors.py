"""The exception of the package."""

from __future__ import annotations


class Error(RuntimeError):
    """Anything that a caller or a file can cause, in one line, with what to try.

    Attributes:
        message: what is wrong.
        hint: what to try; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message
