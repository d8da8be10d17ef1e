"""Brings results of the background thread into event loops, and callbacks into a thread.

The background thread never needs the interpreter: it makes a descriptor readable, and the thread
that watches it takes the results. So it renews leases while a loop is blocked or the GIL is kept.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import traceback
import weakref
from asyncio import get_running_loop
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from . import _lockmod, _threads

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ._lockmod import Call

T = TypeVar("T")


def abandon(value: object) -> None:
    """Releases what arrived for a caller that no longer waits."""
    arrived = cast("list[object]", value) if isinstance(value, list) else [value]
    for lease in arrived:
        if isinstance(lease, _lockmod.Lease):
            lease.abandon()


class _Result(asyncio.Future[T]):
    """What a task awaits. If the task is cancelled, its call ends at once, although the task itself
    learns of it only when the loop turns.
    """

    call: Call[T] | None = None

    def give_up(self) -> None:
        """Nobody waits: what may come must not arrive, and what has arrived is released."""
        if self.call is not None:
            self.call.cancel()
        if self.done() and not self.cancelled() and self.exception() is None:
            abandon(self.result())

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.call is not None:
            self.call.cancel()
            # A signal handler may do this while the loop sleeps, and no result will wake it.
            with suppress(RuntimeError):
                self.get_loop().call_soon_threadsafe(_nothing)
        return is_cancelled


def _nothing() -> None: ...


class LoopPort:
    """The port of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process = os.getpid()
        self._port = _lockmod.Port()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        # Also those that have arrived, as long as their tasks have not run.
        self._open: set[_Result[Any]] = set()
        self._watching: dict[int, asyncio.Future[Any]] = {}
        # From here on the loop keeps the port, until it is closed.
        loop.add_reader(self._port.fileno(), _Reader(self))

    def _send(self, loop: asyncio.AbstractEventLoop, is_long: bool) -> None:
        """Calls that many tasks start in one turn of the loop leave together, after the last."""
        if self._waiting:
            # What the loop is to call may be lost if a signal handler raises, so it is asked for
            # more than once if there are many.
            if self._port.needs_flush():
                loop.call_soon(self._port.flush)
        # No other call waits, so nothing else will come in this turn.
        elif is_long:
            self._port.leave()
        elif getattr(loop, "_ready", None):
            # What is ready to run is not kept waiting; uvloop does not tell.
            self._port.flush()
        else:
            self._port.drive()

    async def _run(
        self,
        start: Callable[[_lockmod.Port], Call[T]],
        loop: asyncio.AbstractEventLoop,
        is_long: bool,
    ) -> T:
        result: _Result[T] = _Result(loop=loop)
        result.call = call = start(self._port)
        try:
            self._open.add(result)
            self._send(loop, is_long)
            self._waiting[call.number] = result
            return await result
        except BaseException:
            # Failed, cancelled, forgotten together with its loop, or ended by a signal handler.
            self._waiting.pop(call.number, None)
            # It may have arrived, and the task is cancelled before it has run.
            result.give_up()
            raise
        finally:
            self._open.discard(result)
            # `result` has the error, whose traceback has this frame and all that its callers refer
            # to: together they would live until a collection.
            del result, call

    def _watch(
        self,
        start: Callable[[_lockmod.Port], Call[T]],
        tell: Callable[[T], None],
        loop: asyncio.AbstractEventLoop,
    ) -> Callable[[], None]:
        result: asyncio.Future[T] = loop.create_future()
        call = start(self._port)
        self._send(loop, True)
        self._watching[call.number] = result

        def arrived(result: asyncio.Future[T]) -> None:
            # Unless it was stopped in the same turn.
            if self._watching.pop(call.number, None) is not None:
                tell(result.result())

        def stop() -> None:
            if self._watching.pop(call.number, None) is not None:
                call.cancel()

        result.add_done_callback(arrived)
        return stop

    def take(self) -> None:
        self._port.deliver(self._waiting, self._watching)

    def close(self) -> None:
        """The loop is closed, and none of its tasks will run."""
        if self._process != os.getpid():
            # A forked child has a copy of its parent's loop.
            return
        self._waiting.clear()
        for result in list(self._open):
            result.give_up()
        # For nobody.
        self._port.deliver({}, {})


class _Reader:
    """What a loop calls when something has arrived. Only the loop keeps it, and only until it is
    closed: a task that still waits may be kept for longer.
    """

    _port: LoopPort | None = None

    def __init__(self, port: LoopPort) -> None:
        self._port = port

    def __call__(self) -> None:
        if self._port is not None:
            self._port.take()

    def __del__(self) -> None:
        # It has none if a signal handler has raised before.
        if self._port is not None:
            self._port.close()


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return get_running_loop()
    except RuntimeError as none:
        raise RuntimeError(f"{none}: coroutines of lockmod need asyncio, or uvloop") from None


def run(
    start: Callable[[_lockmod.Port], Call[T]], *, is_long: bool = False
) -> Coroutine[Any, Any, T]:
    """Waits for a call. If the task is cancelled, nothing of the call is left.

    `is_long` is for a call that asks no node, but waits for something to happen.
    """
    loop = _running_loop()
    return _port(loop)._run(start, loop, is_long)  # pyright: ignore[reportPrivateUsage]


def watch(
    start: Callable[[_lockmod.Port], Call[T]], tell: Callable[[T], None]
) -> Callable[[], None]:
    """Calls `tell` with the result, in the running loop. Returns a function that stops this."""
    loop = _running_loop()
    return _port(loop)._watch(start, tell, loop)  # pyright: ignore[reportPrivateUsage]


# A loop keeps its port, and nothing else does: what waits at a port refers to the loop, and keeping
# a loop that is gone would also keep the locks that arrive there.
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopPort]]
_loops = weakref.WeakKeyDictionary()
# The one that was used last: most programs have only one.
_last: tuple[weakref.ref[asyncio.AbstractEventLoop], weakref.ref[LoopPort]] | None = None


def _port(loop: asyncio.AbstractEventLoop) -> LoopPort:
    """The port of this loop, which is the running one."""
    global _last
    # Read once: loops of other threads write it.
    last = _last
    if last is not None and last[0]() is loop:
        port = last[1]()
    else:
        known = _loops.get(loop)
        port = None if known is None else known()
    if port is None:
        # No other thread does this for this loop.
        port = LoopPort(loop)
        _loops[loop] = weakref.ref(port)
    if last is None or last[1]() is not port:
        _last = (weakref.ref(loop), _loops[loop])
    return port


class _Thread:
    """A thread that calls functions when leases are lost, for programs without an event loop."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._port = _lockmod.Port()
        # Made here, so that a caller learns it if no descriptor is left. (`select` would take only
        # those below 1024.)
        self._bell = selectors.DefaultSelector()
        self._bell.register(self._port.fileno(), selectors.EVENT_READ)
        self._guarding = threading.RLock()
        self._watching: dict[int, Callable[[Any], None]] = {}
        _threads.start(self._run, "lockmod-callbacks", daemon=True)

    def watch(
        self,
        start: Callable[[_lockmod.Port], Call[T]],
        tell: Callable[[T], None],
    ) -> None:
        """Calls `tell` with the result, in the thread."""
        with self._guarding:
            self._watching[start(self._port).number] = tell
            self._port.leave()

    def _run(self) -> None:
        while True:
            self._bell.select()
            for number, value in self._port.take():
                with self._guarding:
                    tell = self._watching.pop(number, None)
                # The thread goes on, whatever a callback raises.
                try:
                    if tell is not None:
                        tell(value)
                except BaseException:  # noqa: BLE001 - reported as the threading module does
                    _report()


def _report() -> None:
    try:
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
    except BaseException:  # noqa: BLE001 - the hook is the program's own
        traceback.print_exc()


_thread: _Thread | None = None
_starting = threading.RLock()


def watch_from_thread(
    start: Callable[[_lockmod.Port], Call[T]], tell: Callable[[T], None]
) -> None:
    """Calls `tell` with the result, in a thread of this process."""
    global _thread
    with _starting:
        if _thread is None or _thread.process != os.getpid():
            _thread = _Thread()
        thread = _thread
    thread.watch(start, tell)


def _forked() -> None:
    """Runs in a forked child: a thread that does not exist there may hold the lock."""
    global _starting
    _starting = threading.RLock()


os.register_at_fork(after_in_child=_forked)
