"""Brings results of the background thread into event loops, and callbacks into a thread.

The background thread never asks for the interpreter: it makes a descriptor readable, and whoever
watches it takes the results. So it renews leases while a loop is blocked or the GIL is kept.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import _lockmod

if TYPE_CHECKING:
    from ._lockmod import Call

T = TypeVar("T")


def abandon(value: object) -> None:
    """Gives back what arrived for somebody who does not wait any more."""
    for lease in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(lease, _lockmod.Lease):
            lease.abandon()


class LoopPort:
    """The port of one event loop. It must not refer to the loop, which it would keep alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._port = _lockmod.Port()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._watching: dict[int, Callable[[Any], None]] = {}
        self._is_flushing = False
        loop.add_reader(self._port.fileno(), self._take)

    def _start(self, start: Callable[[_lockmod.Port], Call[T]]) -> Call[T]:
        """What many tasks start in one turn of the loop leaves together, after the last of them."""
        call = start(self._port)
        if not self._waiting and not self._is_flushing:
            # Nobody else waits, so nothing else will come in this turn.
            self._port.flush()
        elif not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        return call

    def _flush(self) -> None:
        self._is_flushing = False
        self._port.flush()

    async def run(self, start: Callable[[_lockmod.Port], Call[T]]) -> T:
        """Waits for a call. Where the task is cancelled, nothing of the call is left."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = self._start(start)
        self._waiting[call.number] = future
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting.pop(call.number, None)
            call.cancel()
            # It may have arrived in the same turn of the loop.
            if future.done() and not future.cancelled() and future.exception() is None:
                abandon(future.result())
            raise

    def watch(
        self,
        start: Callable[[_lockmod.Port], Call[T]],
        tell: Callable[[T], None],
    ) -> Callable[[], None]:
        """Calls `tell` with the result, in the loop, unless what is returned was called before."""
        call = self._start(start)
        self._watching[call.number] = tell

        def stop() -> None:
            if self._watching.pop(call.number, None) is not None:
                call.cancel()

        return stop

    def _take(self) -> None:
        for number, value in self._port.take():
            future = self._waiting.pop(number, None)
            tell = self._watching.pop(number, None)
            if tell is not None:
                tell(value)
            elif future is None or future.done():
                abandon(value)
            elif isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPort] = weakref.WeakKeyDictionary()


def port() -> LoopPort:
    """The port of the running loop."""
    loop = asyncio.get_running_loop()
    found = _loops.get(loop)
    if found is None:
        # No other thread does this for this loop.
        found = _loops[loop] = LoopPort(loop)
    return found


class Callbacks:
    """A thread that calls functions when leases are lost, for programs without an event loop."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._port = _lockmod.Port()
        self._guarding = threading.Lock()
        self._watching: dict[int, Callable[[Any], None]] = {}
        threading.Thread(target=self._run, name="lockmod-callbacks", daemon=True).start()

    def watch(
        self,
        start: Callable[[_lockmod.Port], Call[T]],
        tell: Callable[[T], None],
    ) -> None:
        """Calls `tell` with the result, in the thread."""
        with self._guarding:
            self._watching[start(self._port).number] = tell
            self._port.flush()

    def _run(self) -> None:
        while True:
            select.select([self._port.fileno()], [], [])
            for number, value in self._port.take():
                with self._guarding:
                    tell = self._watching.pop(number)
                try:
                    tell(value)
                except Exception:  # noqa: BLE001 - as the threading module reports what nobody catches
                    import sys

                    threading.excepthook(
                        threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                    )


_callbacks: Callbacks | None = None
_starting = threading.Lock()


def callbacks() -> Callbacks:
    """The thread of this process."""
    global _callbacks
    with _starting:
        if _callbacks is None or _callbacks.process != os.getpid():
            _callbacks = Callbacks()
        return _callbacks


def _forked() -> None:
    """In a child: the lock may have been taken by a thread that is not there."""
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forked)
