"""Threads of the package, to which the program's signals do not come.

A program may have blocked a signal in all threads that it knows of. The system gives it to any
other, and so could end the process.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import Callable, Generator, Iterable, TypeVar

T = TypeVar("T")

# What a thread has caused itself comes to it in any case, and ends the process if it is blocked.
_FAULTS = {
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}


def start(run: Callable[[], None], name: str, *, daemon: bool) -> None:
    """Starts a thread that has blocked all signals."""
    # It takes over what this thread blocks.
    with _blocking(signal.valid_signals() - _FAULTS):
        threading.Thread(target=run, name=name, daemon=daemon).start()


def as_here(callback: Callable[[T], object]) -> Callable[[T], object]:
    """The callback, for such a thread: it finds blocked what this thread blocks now, and so do the
    processes that it starts. What is pending when it begins stays so.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def run(value: T) -> object:
        with _blocking(blocked | signal.sigpending()):
            return callback(value)

    return run


@contextmanager
def _blocking(signals: Iterable[signal.Signals | int]) -> Generator[None, None, None]:
    """Blocks these signals in this thread, and no others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # A handler that raises here has the mask changed already.
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
