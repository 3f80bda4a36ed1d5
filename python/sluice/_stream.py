"""Tokens one at a time, from a call that hands each to a callback.

The call runs in a thread of its own. It and the caller never run at the same time: the thread waits in
the callback until the caller asks for the next token, so the model stays with one thread at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator, NamedTuple


class Token(NamedTuple):
    """One token of an answer.

    ``text`` is what is certain of the answer with it, in whole characters; it may be empty. ``id`` is -1
    in a last one, where text was held back until the end.
    """

    id: int
    text: str


class Handover:
    """Runs ``call(on_token)`` in a thread, and yields what it hands to ``on_token``."""

    def __init__(self, call: Callable[[Callable[[int, str], bool]], Any]) -> None:
        self._call = call
        self._asked, self._given = threading.Semaphore(0), threading.Semaphore(0)
        self._token: Token | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self.result: Any = None

    def _on_token(self, token: int, text: str) -> bool:
        self._token = Token(token, text)
        self._given.release()
        self._asked.acquire()
        return not self._stopped

    def _run(self) -> None:
        self._asked.acquire()
        try:
            if not self._stopped:
                self.result = self._call(self._on_token)
        except BaseException as error:  # the caller's thread raises it
            self._error = error
        self._token = None
        self._given.release()

    def tokens(self) -> Iterator[Token]:
        # A daemon: a program that ends in the middle of a text does not wait for it.
        thread = threading.Thread(target=self._run, name="sluice-stream", daemon=True)
        thread.start()
        try:
            while True:
                self._asked.release()
                self._given.acquire()
                if self._token is None:
                    break
                yield self._token
        finally:  # at the end, on close(), and on Ctrl-C
            self._stopped = True
            self._asked.release()
            thread.join()
        if self._error is not None:
            raise self._error
