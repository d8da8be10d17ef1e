"""Locks that are held."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from sys import is_finalizing
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    NoReturn,
    Sequence,
    SupportsFloat,
    Tuple,
    TypeVar,
    overload,
)

from . import _lockmod
from ._callbacks import Callback, when_lost
from ._errors import ForkedError, LockError, LostError, NoQuorumError, RefusedError
from ._made import Made, MadeOfMany
from ._options import function, seconds
from ._port import run, watch, watch_from_thread
from ._threads import as_here

if TYPE_CHECKING:
    from types import TracebackType

    from ._lockmod import Lease


_Begun = TypeVar("_Begun", bound="_AsyncBlocks")

_NAME_MAX = 80
# What is said of the wrong kind of block.
_ASYNC = "a guard of `locker.aio` is for `async with`, not `with`"
_SYNC = (
    "this guard is for `with`: for `async with`, take `locker.lock(...)` or a guard of `locker.aio`"
)


def shown(name: bytes) -> str:
    """A lock's name in short."""
    return repr(name) if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]!r}..."


class _Lost(Made):
    _part = _lockmod.Lease

    def __init__(self, callbacks: set[Callback], lease: Lease) -> None:
        self._callbacks, self._lease = callbacks, lease

    def __repr__(self) -> str:
        state = "set" if self.is_set() else "not set"
        return f"<{type(self).__name__} of {shown(self._lease.name)}, {state}>"

    def is_set(self) -> bool:
        """Whether the lease has ended. Once true, it stays true."""
        return self._lease.is_lost()

    __bool__ = is_set


class Lost(_Lost):
    """An event: the lease has ended. The clock sets it, whether any node answers or not.

    It is set `lost_margin` before the validity ends, so that there is time to stop; if the lock was
    removed by force, at the next renewal or extension, if there is one before that; and after the
    release.
    """

    _source = "`lost` of a Guard is one"

    @overload
    def wait(self, timeout: None = None) -> str: ...
    @overload
    def wait(self, timeout: SupportsFloat) -> str | None: ...
    def wait(self, timeout: SupportsFloat | None = None) -> str | None:
        """Blocks until the lease has ended, and returns why; None after `timeout` seconds.

        Why is one of `expired`, `removed`, `max_hold` and `released`.
        """
        return self._lease.lost(seconds(timeout, endless=True))

    def call(self, callback: Callable[[str], object]) -> None:
        """Calls `callback(reason)` when the lease is lost, in a thread of this package.

        It is not called for a release. All callbacks share that thread, so keep them short. Several
        are called in any order.
        """
        call = as_here(function(callback))
        when_lost(self._callbacks, self._lease, call, watch_from_thread)


class AsyncLost(_Lost):
    """An event: the lease has ended. See `Lost`."""

    _source = "`lost` of an AsyncGuard is one"

    @overload
    async def wait(self, timeout: None = None) -> str: ...
    @overload
    async def wait(self, timeout: SupportsFloat) -> str | None: ...
    async def wait(self, timeout: SupportsFloat | None = None) -> str | None:
        """Waits until the lease has ended, and returns why; None after `timeout` seconds."""
        limit = seconds(timeout, endless=True)
        return await run(lambda port: self._lease.lost(limit, port), is_long=True)

    def call(self, callback: Callable[[str], object]) -> None:
        """Calls `callback(reason)` in the running event loop when the lease is lost.

        If that loop is closed by then, nothing is called; `is_set()` tells of the loss.
        A coroutine function is refused: to await something, make a task that awaits `wait()`.
        Several callbacks are called in any order.
        """
        when_lost(self._callbacks, self._lease, function(callback), watch)


class _Held(Made):
    """The common part of guards."""

    _part = _lockmod.Lease

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._callbacks: set[Callback] = set()

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier grant of this lock.

        Pass it to whatever the lock protects, so that it can refuse a late holder. A reader's is at
        least that of every earlier writer, and smaller than that of every later one.
        """
        return self._lease.fence

    @property
    def name(self) -> bytes:
        """The lock's name, in bytes: `name.decode()` is the text that was given."""
        return self._lease.name

    @property
    def exclusive(self) -> bool:
        """Whether it is a writer's, so that nobody else holds the lock.

        False after a release or a loss.
        """
        return self._lease.is_exclusive()

    @property
    def validity(self) -> float:
        """How many seconds the holder may still rely on the lease; 0 when that is over.

        A lease that was not extended in time is lost `lost_margin` before: so much is left then, to
        stop in.
        """
        return self._lease.validity()

    def check(self) -> None:
        """Raises `LostError` if the lease has ended: call it before every step that matters."""
        self._lease.check()

    def keep(self) -> None:
        """Keeps the lock when the guard is forgotten or the program ends: nothing releases it then,
        and the lease ends with its ttl, because nothing renews it either. Until then it is renewed
        as before. Raises `LostError` if the lease has ended.
        """
        self._lease.check()
        self._lease.keep()

    def _abandon(self) -> None:
        """Releases without waiting for any node."""
        self._lease.abandon()

    def __repr__(self) -> str:
        try:
            loss = self._lease.loss()
        except ForkedError:
            state = "held by the parent process"
        else:
            state = f"valid for {self.validity:.1f} s" if loss is None else loss.reason
            if loss is None and not self.exclusive:
                state = f"shared, {state}"
        return f"<{type(self).__name__} {shown(self.name)}, fence {self.fence}, {state}>"


class Guard(_Held, _lockmod.Exit):
    """A lock that is held, to be used in a `with` block, or released.

    >>> guard = locker.acquire("invoice-5")
    >>> guard.fence
    1
    >>> 0 < guard.validity < 30
    True
    >>> guard.extend()
    >>> guard.release()
    >>> guard.check()
    Traceback (most recent call last):
    ...
    lockmod.LostError: the lease of lock 'invoice-5' with fence 1 was released ... ago, by ...

    A guard that nothing refers to any more releases in the background. Its `lost` counts as a
    reference to it: whoever watches the lease holds it. It may be used from any thread.
    """

    _source = "`acquire(name)` of a Locker returns one, and `with locker.lock(name)` has one"

    @property
    def lost(self) -> Lost:
        """The event that the lease has ended: `is_set()`, `wait()`, `call()`."""
        return Lost(self._callbacks, self._lease)

    def extend(self, ttl: SupportsFloat | None = None) -> None:
        """Extends the lease to the ttl from now: to `ttl` seconds, if it is given.

        Background renewal does this by itself, so call it only if that is turned off, or for
        another ttl. Once a quorum has confirmed it, each later renewal asks for that ttl too. A
        shorter ttl does not shorten the lease now: renewals ask for it from now on, so the lease is
        shorter after its present end.

        Raises `NoQuorumError` if too few nodes answered: the lease is as it was, and may be
        extended again. Raises `RefusedError` if too many refuse, for example a ttl above their
        `lockmod.max-ttl`: the lease is as it was. Raises `LostError` if the lease has ended.
        """
        self._lease.extend(seconds(ttl))

    def downgrade(self) -> None:
        """Turns a writer into a reader in one step, and lets other readers in. The fence stays.

        There is no upgrade: two readers would wait for each other. A reader stays one. Raises what
        `extend` raises. The guard is a reader's in any case; nodes that did not receive the
        downgrade let no reader in before the next renewal, or an `extend`.

        >>> with locker.acquire("plan-4") as guard:
        ...     guard.downgrade()
        ...     with other.acquire("plan-4", shared=True) as reader:
        ...         reader.fence == guard.fence, guard.exclusive
        (True, False)
        """
        self._lease.downgrade()

    def release(self) -> None:
        """Releases the lock, and waits until a quorum of nodes has confirmed.

        Raises `LostError` if the lease had ended before, by the clock or at the nodes, so that
        another may have held the lock since; what `lost` and `check()` said stays the reason.
        Raises `NoQuorumError` if too few nodes answered, and `RefusedError` if too many refuse: on
        those the lease runs out. In each case there is nothing left to do. A second release does
        nothing.
        """
        self._lease.release()

    if not TYPE_CHECKING:

        def __aenter__(self, *_: object) -> NoReturn:
            # The error keeps this frame, which must not keep the lock.
            del self
            raise TypeError(_SYNC)

        __aexit__ = __aenter__

    def __enter__(self) -> Guard:
        """Raises `LostError` if the lease has ended, so that no block runs without the lock."""
        self.check()
        return self

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases; raises `LostError` if the lease ended while the block ran.

        A release that too few nodes confirmed raises nothing here. What the block raised is not
        replaced. The native `__exit__` calls it.
        """
        _tell(_first(_losses([self]), _release([self._lease])), error)


def _loss(guard: _Held) -> LostError | None:
    """The error of a lease that is lost and was not released."""
    loss = guard._lease.loss()  # pyright: ignore[reportPrivateUsage]
    return loss if loss is not None and loss.reason != "released" else None


def _losses(guards: Sequence[_Held]) -> list[LostError | None]:
    """The same of several."""
    try:
        return [_loss(guard) for guard in guards]
    except ForkedError:
        # The releases fail with the same.
        return [None for _ in guards]


def _release(leases: list[Lease]) -> list[LockError | None]:
    """Releases all, for a thread that waits for that. Returns for each what went wrong."""
    try:
        return _lockmod.release_all(leases)
    except RefusedError:
        if not is_finalizing():
            raise
        # What is collected as the program ends was released when that began.
        return [None for _ in leases]


def _first(losses: list[LostError | None], failures: list[LockError | None]) -> LockError | None:
    """What is to be told of how the leases of a block have ended, and of their releases."""
    for loss, failure in zip(losses, failures):
        if loss is not None:
            return loss
        # If nodes said so, the work was done in time, and the lease runs out.
        is_unconfirmed = isinstance(failure, (NoQuorumError, RefusedError)) and failure.nodes
        if failure is not None and not is_unconfirmed:
            return failure
    return None


def _tell(end: LockError | None, error: BaseException | None, is_ours: bool = False) -> None:
    """Raises it, unless the block has raised an error that is not ours."""
    try:
        if end is not None and (is_ours or error is None):
            raise end from error
    finally:
        # Otherwise it would keep this frame, and this frame it.
        del end


class _AsyncBlocks:
    """What `async with` blocks of one or several guards do."""

    _blocks: list[_Block]

    def _guards(self) -> Sequence[AsyncGuard]:
        raise NotImplementedError

    def _leases(self) -> list[Lease]:
        return [guard._lease for guard in self._guards()]  # pyright: ignore[reportPrivateUsage]

    if not TYPE_CHECKING:

        def __enter__(self, *_: object) -> NoReturn:
            del self  # as in Guard
            raise TypeError(_ASYNC)

        __exit__ = __enter__

    async def __aenter__(self: _Begun) -> _Begun:
        """Raises `LostError` if a lease has ended, and then releases what is left."""
        try:
            for guard in self._guards():
                guard.check()
            self._blocks.append(_Block(self._leases()))
            return self
        except BaseException:
            # Also if a signal handler has raised: what watches the lease would keep it.
            self._abandon()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases; raises `LostError` if a lease ended while the block ran."""
        try:
            await self._end(error)
        except BaseException:
            # Also after a signal handler that raises. After a release this does nothing.
            with suppress(ForkedError):
                self._abandon()
            raise

    async def _end(self, error: BaseException | None) -> None:
        try:
            for guard in self._guards()[:1]:
                guard._refuse_fork()  # pyright: ignore[reportPrivateUsage]
        except ForkedError:
            if error is None:
                raise
            return
        is_ours = await _end_block(self._blocks, error)
        leases = self._leases()
        # No variable has the error: it would keep this frame, and this frame it.
        _tell(
            _first(
                _losses(self._guards()),
                await run(lambda port: _lockmod.release_all(leases, port)),
            ),
            error,
            is_ours,
        )

    def _abandon(self) -> None:
        for lease in self._leases():
            lease.abandon()


class AsyncGuard(_AsyncBlocks, _Held):
    """A lock that is held, to be used in an `async with` block, or released.

    The block is cancelled when the lease is lost, and ends with `LostError`.
    """

    _source = (
        "`await locker.aio.acquire(name)` returns one, and `async with locker.lock(name)` has one"
    )

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self._blocks: list[_Block] = []

    @property
    def lost(self) -> AsyncLost:
        """The event that the lease has ended: `is_set()`, `await wait()`, `call()`."""
        return AsyncLost(self._callbacks, self._lease)

    async def extend(self, ttl: SupportsFloat | None = None) -> None:
        """Extends the lease now, to `ttl` seconds if it is given; see `Guard.extend`.

        If it is cancelled, an extension that has begun goes on, and counts.
        """
        length = seconds(ttl)
        self._refuse_fork()
        await run(lambda port: self._lease.extend(length, port))

    async def downgrade(self) -> None:
        """Turns a writer into a reader; see `Guard.downgrade`.

        If it is cancelled, it may have been sent, or not: `exclusive` tells.
        """
        self._refuse_fork()
        await run(self._lease.downgrade)

    async def release(self) -> None:
        """Releases the lock; see `Guard.release`. If it is cancelled, it is sent anyway."""
        self._refuse_fork()
        await run(self._lease.release)

    def _refuse_fork(self) -> None:
        """Raises `ForkedError` in a forked child: an await would never end there."""
        if self._lease.is_lost():
            self._lease.lost(0)

    def _guards(self) -> Sequence[AsyncGuard]:
        return [self]


class Guards(MadeOfMany, Tuple[Guard, ...], _lockmod.Exit):
    """The guards of several locks, in the order of their names: a tuple, or a `with` block.

    The end of the block releases all of them; see `Guard`.
    """

    _part, _source = Guard, "`acquire_many(names)` of a Locker returns them"

    def __enter__(self) -> Guards:
        """Raises `LostError` if one of the leases has ended, and then releases the others."""
        try:
            for guard in self:
                guard.check()
            return self
        except BaseException:
            self._abandon()
            raise

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases all; raises `LostError` if one of the leases ended while the block ran."""
        leases = [guard._lease for guard in self]  # pyright: ignore[reportPrivateUsage]
        _tell(_first(_losses(self), _release(leases)), error)

    def _abandon(self) -> None:
        for guard in self:
            guard._abandon()  # pyright: ignore[reportPrivateUsage]

    if not TYPE_CHECKING:

        def __aenter__(self, *_: object) -> NoReturn:
            del self  # as in Guard
            raise TypeError(_SYNC)

        __aexit__ = __aenter__


class AsyncGuards(_AsyncBlocks, MadeOfMany, Tuple[AsyncGuard, ...]):
    """The guards of several locks: a tuple, or an `async with` block. See `Guards`.

    The block is cancelled when the first of the leases is lost, and ends with `LostError`.
    """

    _part, _source = AsyncGuard, "`await locker.aio.acquire_many(names)` returns them"

    def __init__(self, _guards: Iterable[AsyncGuard] = (), /) -> None:
        super().__init__()
        self._blocks: list[_Block] = []

    def _guards(self) -> Sequence[AsyncGuard]:
        return self


class _Block:
    """Cancels the task of an `async with` block when a lease is lost, like `asyncio.timeout`."""

    def __init__(self, leases: list[Lease]) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("use a lock inside of a task")
        self.task: asyncio.Task[Any] = task
        self._before = _cancelling(task)
        self._has_cancelled = False
        self._stops = [self._follow(lease) for lease in leases]

    def _follow(self, lease: Lease) -> Callable[[], None]:
        return watch(lambda port: lease.lost(None, port), self._lost)

    def _lost(self, reason: str | None) -> None:
        # The first of several is enough.
        if reason != "released" and not self._has_cancelled:
            self._has_cancelled = True
            self.task.cancel()

    async def end(self, error: BaseException | None) -> bool:
        """Whether the loss ended the block, and not another cancellation."""
        for stop in self._stops:
            stop()
        # A block that ends in another task than it began in was not cancelled by the loss.
        if not self._has_cancelled or asyncio.current_task() is not self.task:
            return False
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if not is_cancelled:
            # The block ended before the cancellation reached it: that waits for the next await.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                is_cancelled = error is None
        uncancel: Callable[[], int] | None = getattr(self.task, "uncancel", None)
        if uncancel is not None and uncancel() > self._before:
            # Another caller has cancelled the task too, and must see it end.
            if isinstance(error, asyncio.CancelledError):
                return False
            raise asyncio.CancelledError
        return is_cancelled


async def _end_block(blocks: list[_Block], error: BaseException | None) -> bool:
    """Ends the last block of a guard, of this task if it began one. Whether the loss ended it."""
    if not blocks:
        return False
    task = asyncio.current_task()
    block = next((one for one in reversed(blocks) if one.task is task), blocks[-1])
    blocks.remove(block)
    return await block.end(error)


def _cancelling(task: asyncio.Task[Any]) -> int:
    """How many cancellations of the task are pending: known from Python 3.11 on."""
    cancelling: Callable[[], int] | None = getattr(task, "cancelling", None)
    return 0 if cancelling is None else cancelling()
