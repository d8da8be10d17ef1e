"""Releases what is held when the process ends. A node that hangs delays that by its timeout.

A child of multiprocessing that was forked ends without the functions of atexit, and calls those of
multiprocessing instead. It has forgotten those that its parent had registered.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from . import _lockmod, _threads

# After all others, which may still need locks.
_LAST = -1_000_000
_is_registered = False


def is_daemon() -> bool:
    """Whether the program ends without waiting for this thread."""
    this = threading.current_thread()
    # A daemon thread that forks is the main thread of the child.
    return this.daemon and this is not threading.main_thread()


def _finish_child(_: object = None) -> None:
    """Runs in a child of multiprocessing, which waits for its threads only after this."""
    if _others():
        # It waits for this one too.
        _threads.start(_finish_after_others, "lockmod-ending", daemon=False)
    else:
        _lockmod.finish()


def _others() -> list[threading.Thread]:
    """The other threads that the process waits for before it ends."""
    this = threading.current_thread()
    main = threading.main_thread()
    return [one for one in threading.enumerate() if not one.daemon and one not in (this, main)]


def _finish_after_others() -> None:
    while others := _others():
        for other in others:
            other.join()
    _lockmod.finish()


def _register() -> None:
    """Registers with multiprocessing, if the program uses it."""
    global _is_registered
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None or _is_registered:
        return
    _is_registered = True

    def begin(_: object) -> None:
        util.Finalize(None, _finish_child, exitpriority=_LAST)

    # For children that begin later: this one too, if it is forked but has not begun.
    util.register_after_fork(_finish_child, begin)
    if process.parent_process() is not None:
        begin(None)


# In a child that os.fork() made, for it to begin as one of multiprocessing.
os.register_at_fork(after_in_child=_register)
_register()
atexit.register(_lockmod.finish)
