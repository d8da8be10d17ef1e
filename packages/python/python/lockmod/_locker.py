"""The locker: acquires locks for a program."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Iterable, NamedTuple, Optional, SupportsFloat, TypeVar

from . import _lockmod
from ._acquiring import awaited
from ._errors import NodeVote, described, given
from ._guard import AsyncGuard, AsyncGuards, Guard, Guards, shown
from ._made import Made, Single, unmade
from ._options import Length, Name, Options, all_bytes, checked_label, file, flag, name_bytes
from ._options import options, seconds, terms, urls
from ._port import run

if TYPE_CHECKING:
    from types import TracebackType

    from typing import TypedDict

    class _Settings(TypedDict):
        ttl: Length | None
        max_ttl: Length | None
        timeout: Length | None
        wait: Length | None
        drift: Length | None
        lost_margin: Length | None
        renew: bool
        max_hold: Length | None
        label: str
        allow_even_nodes: bool
        cacert: str | None
        cert: str | None
        key: str | None


_Self = TypeVar("_Self", bound="Locker")

# How often this process has been forked from another: cheaper to check than the process id.
_forks = 0


def _forked() -> None:
    """Runs in a forked child, which lets go of the parent's connections.

    While a child has copies of them, a node does not see that the parent has ended. Their numbers
    stay taken if possible: in the child's memory, objects of the parent still have them.
    """
    global _forks
    _forks += 1
    nothing: int | None = None
    for number, inode in _lockmod.sockets():
        with suppress(OSError):
            told = os.fstat(number)
            if told.st_ino != inode or not stat.S_ISSOCK(told.st_mode):
                continue
            if nothing is None:
                with suppress(OSError):
                    nothing = os.open(os.devnull, os.O_RDWR)
            if nothing is None:
                os.close(number)
            else:
                os.dup2(nothing, number, inheritable=False)
    if nothing is not None:
        os.close(nothing)


os.register_at_fork(after_in_child=_forked)


@described
class NodeInfo(NamedTuple):
    """What one node reports about a lock. Lengths of time are in seconds.

    - `node`: the node's address, without password.
    - `state`: `free`, `held`, or `reserved` for the first in line; empty if the node reports
      nothing.
    - `fence`: the highest fence issued.
    - `label`: the holder's label; of several readers, that of the one that has held it longest.
    - `left`: how long the lease, or the last of several readers' leases, lasts unless it is
      extended; 0 if the lock is free.
    - `held_for`: how long it has been held; 0 if the lock is free.
    - `waiters`: how many requests wait in line for it.
    - `readers`: how many readers hold it; 0 if a writer or nobody does.
    - `reader_labels`: the labels of the readers who have held it longest.
    - `waiting_readers`: how many of those in line wait as readers.
    - `first_waiting`: how long the first in line has been waiting at this node, if somebody waits.
    - `vote`: why, if the node reports nothing.
    """

    node: str
    state: str
    fence: int
    label: Optional[str]
    left: Optional[float]
    held_for: Optional[float]
    waiters: int
    readers: int = 0
    reader_labels: tuple[str, ...] = ()
    waiting_readers: int = 0
    first_waiting: Optional[float] = None
    vote: Optional[NodeVote] = None

    def __repr__(self) -> str:
        return given(self)


_HERE = "it has the connections of this process: make one in each process"


class Locker(Single):
    """Acquires locks over a quorum of nodes. A program needs only one; any thread may use it.

    It keeps its connections to all nodes until it is closed, nothing refers to it any more, or the
    program ends.

    >>> from lockmod import Locker
    >>> locker = Locker(nodes)
    >>> with locker.lock("account-17", wait=2) as guard:
    ...     guard.check()

    `nodes` are Redis URLs: `redis://`, `rediss://` (TLS) or `unix://`, with user, password and
    database (`unix:///run/redis.sock?user=me&pass=secret&db=1`);
    `redis+sentinel://host:port,host:port/group` for the master of a group under Sentinel, and
    `redis+cluster://host:port,host:port` for a Redis Cluster, each of which is one node. All users
    of a lock need the same list. A single text has them separated by commas, as in `LOCKMOD_NODES`;
    a comma within a password is `%2C` there.

    All lengths of time are in seconds.

    - `ttl`: the length of a lease, 30 s unless given. It is renewed at a third of it. A holder that
      crashes blocks others for up to this long.
    - `wait`: how long `acquire` waits while another holds the lock, or too few nodes grant it, also
      because they are down; 10 s unless given. For an error at once, use `try_acquire` or `wait=0`.
      If nodes are silent, the error may come later than that, by one `timeout`.
    - `label`: a name for the caller, for people to read: up to 128 bytes, shown to waiters.
    - `renew`: whether leases are renewed in the background: yes, unless given.
    - `max_hold`: the longest total time that a lease may be held; others get the lock when the last
      ttl has passed, or at the release.
    - `timeout`: how long to wait for each node's answer: a twentieth of the ttl, at least 50 ms
      and at most 500 ms, unless given. A node that was silent for some seconds is not waited for
      until it answers again; meanwhile its vote is `timed_out` at once.
    - `lost_margin`: how long before its end a lease counts as lost: a tenth of the ttl, at most
      1 s, unless given. At most about a third of the ttl, so that as long is left for a renewal.
    - `max_ttl`: the nodes' `lockmod.max-ttl`, if it is not a day. (In a Cluster, and with
      `lockmod.replicas`, the default is a minute.)
    - `drift`: how much the validity is shortened for clocks that run at different rates, in
      seconds: a hundredth of the ttl and 2 ms, unless given.
    - `allow_even_nodes`: allows an even number of nodes, which survives no more failures than one
      node fewer.
    - `cacert`, `cert`, `key`: PEM files for TLS.

    None stands for the default in all options. A `with` block closes the locker at its end. Raises
    `OptionError` if a setting is wrong; does not wait for nodes. After a fork the child's first
    call opens new connections.

    `try_acquire` and `with` blocks of `lock` call `acquire`, so a subclass overrides that for them
    too, but not for `acquire_many` and `aio`, which have code of their own. An `async with` block
    of `lock` calls `aio.acquire`.
    """

    _single = _HERE
    _is_closed = False

    def __init__(
        self,
        nodes: str | Iterable[str],
        *,
        ttl: SupportsFloat | None = None,
        wait: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        timeout: SupportsFloat | None = None,
        lost_margin: SupportsFloat | None = None,
        max_ttl: SupportsFloat | None = None,
        drift: SupportsFloat | None = None,
        allow_even_nodes: bool | None = None,
        cacert: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        self._nodes = urls(nodes)
        self._settings: _Settings = {
            "ttl": seconds(ttl),
            "max_ttl": seconds(max_ttl, endless=True),
            "timeout": seconds(timeout),
            "wait": seconds(wait, endless=True),
            "drift": seconds(drift),
            "lost_margin": seconds(lost_margin),
            "renew": flag("renew", renew, True),
            "max_hold": seconds(max_hold, endless=True),
            "label": "" if label is None else checked_label(label),
            "allow_even_nodes": flag("allow_even_nodes", allow_even_nodes, False),
            "cacert": file("cacert", cacert),
            "cert": file("cert", cert),
            "key": file("key", key),
        }
        self._forks = _forks
        self._made = _lockmod.Core(self._nodes, **self._settings)

    def __repr__(self) -> str:
        made: _lockmod.Core | None = getattr(self, "_made", None)
        return f"<{type(self).__name__} of {'nothing' if made is None else made.shown()}>"

    @property
    def _core(self) -> _lockmod.Core:
        try:
            is_here = self._forks == _forks
        except AttributeError:
            raise unmade(self) from None
        if not is_here and not self._is_closed:
            # Two threads at once make one each, and the later one stays: both are good.
            self._made = _lockmod.Core(self._nodes, **self._settings)
            self._forks = _forks
            if self._is_closed:
                # Another thread has closed it meanwhile.
                self._made.close()
        return self._made

    def acquire(
        self,
        name: Name,
        *,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> Guard:
        """Acquires the lock, waiting in line while another holds it, for `wait` seconds at most.

        It also waits while too few nodes grant the lock, because they are down for example. For an
        error at once, use `try_acquire` or `wait=0`. If nodes are silent, the error may come later
        than that, by the locker's `timeout`.

        `wait`, `ttl` and `max_hold` are in seconds; `wait=math.inf` waits without end, and
        `max_hold=math.inf` lifts the locker's limit. The defaults are the locker's. Raises
        `HeldError`, `NoQuorumError`, `RefusedError`, `TooLateError` or `OptionError`. Ctrl-C ends
        the wait, and leaves nothing behind, as soon as the nodes have heard of it.

        >>> with locker.acquire("account-17", label="worker-7") as guard:
        ...     other.acquire("account-17", wait=0)
        Traceback (most recent call last):
        ...
        lockmod.HeldError: lock 'account-17' is not free: ... nodes hold it for worker-7 for ...

        With `shared` it is held as a reader: with any number of readers, but no writer. Readers and
        writers are served in the order in which they came.

        >>> with locker.acquire("plan-3", shared=True), other.acquire("plan-3", shared=True):
        ...     other.acquire("plan-3", wait=0)
        Traceback (most recent call last):
        ...
        lockmod.HeldError: lock 'plan-3' is not free: ... nodes hold it for ...
        """
        asked = options(wait, ttl, label, renew, max_hold, shared)
        return Guard(self._core.acquire(name_bytes(name), *asked))

    def try_acquire(
        self,
        name: Name,
        *,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> Guard:
        """Acquires the lock if nobody holds it, trying once, with the options of `acquire`."""
        return self.acquire(
            name, wait=0, ttl=ttl, label=label, renew=renew, max_hold=max_hold, shared=shared
        )

    def acquire_many(
        self,
        names: Iterable[Name],
        *,
        shared: Iterable[Name] | None = None,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
    ) -> Guards:
        """Acquires all of these locks or none. `wait` is for all of them together.

        The other options are those of `acquire`, for each of the locks; with `wait=0` each is tried
        once. Those in `shared` are acquired as a reader, unless they are in `names` too.

        They are acquired in the order of their names, whatever order they are given in, so that
        two callers cannot wait for each other; a repeated name counts once. The guards come in the
        order of the names. Raises what `acquire` raises for the first lock that was not acquired.

        >>> with locker.acquire_many(["b", "a"]) as guards:
        ...     [guard.name for guard in guards]
        [b'a', b'b']
        >>> guards = locker.acquire_many(["stock-5"], shared=["catalogue-5"])
        >>> [(guard.name, guard.exclusive) for guard in guards]
        [(b'catalogue-5', False), (b'stock-5', True)]
        """
        every, read = _all_names(names, shared)
        asked = terms(wait, ttl, label, renew, max_hold)
        leases = self._core.acquire_many(every, read, *asked)
        return Guards([Guard(lease) for lease in leases])

    def lock(
        self,
        name: Name,
        *,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> Lock:
        """The lock as a context manager: for `with` blocks and for `async with` blocks.

        The options are those of `acquire`. Nothing is sent before the block begins. At its end the
        lock is released, and `LostError` is raised if the lease ended while the block ran.
        """
        asked = options(wait, ttl, label, renew, max_hold, shared)
        self._core.check(name_bytes(name), *asked)
        return Lock(self, name, asked)

    def info(self, name: Name) -> list[NodeInfo]:
        """Returns what each node reports about the lock, and changes nothing.

        >>> guard = locker.acquire("account-31", label="worker-7")
        >>> [(told.state, told.fence, told.label) for told in locker.info("account-31")]
        [('held', 1, 'worker-7'), ('held', 1, 'worker-7'), ('held', 1, 'worker-7')]
        >>> guard.release()
        """
        return list(self._core.info(name_bytes(name)))

    def settle(self) -> list[NodeVote]:
        """Waits until every reachable node has carried out everything that was sent to it.

        Returns each node's vote. A program does this automatically when it ends.
        """
        return list(self._core.settle())

    def close(self) -> None:
        """Refuses every later call with `RefusedError`. It may be called again, and waits for
        nothing, so a coroutine calls it too.

        A program that makes only one locker need not call it. Locks that are held stay held and are
        renewed, and calls in progress go on. The connections end when the last of these guards is
        released or forgotten, and the last call is over; at once if there are none. What was sent
        before is carried out. A `with` block calls it at its end.

        >>> from lockmod import Locker
        >>> with Locker(nodes) as short:
        ...     guard = short.acquire("report-7")
        >>> guard.check()
        >>> guard.release()
        >>> short.acquire("report-7")
        Traceback (most recent call last):
        ...
        lockmod.RefusedError: the locker is closed: ...
        """
        self._is_closed = True
        self._core.close()

    def __enter__(self: _Self) -> _Self:
        """Raises `RefusedError` if the locker is closed."""
        self._core.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def aio(self) -> AsyncLocker:
        """The same locker for coroutines."""
        return AsyncLocker(self)


class AsyncLocker(Made):
    """The methods of `Locker` as awaitables, with the same names, arguments and errors.

    >>> async def work():
    ...     async with await locker.aio.acquire("account-23") as guard:
    ...         return guard.fence
    >>> asyncio.run(work())
    1

    A task that is cancelled while it waits leaves nothing behind, as soon as the nodes have heard
    of it, a few milliseconds later.
    """

    # A new one is made for each `locker.aio`.
    __slots__ = ("_locker",)
    _single = _HERE
    _part, _source = Locker, "`aio` of a Locker is one"

    def __init__(self, locker: Locker) -> None:
        self._locker = locker

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._locker!r}>"

    @awaited
    async def acquire(
        self,
        name: Name,
        *,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> AsyncGuard:
        """Acquires the lock; see `Locker.acquire`."""
        core, key = self._locker._core, name_bytes(name)  # pyright: ignore[reportPrivateUsage]
        asked = options(wait, ttl, label, renew, max_hold, shared)
        return AsyncGuard(await run(lambda port: core.acquire(key, *asked, port)))

    @awaited
    async def try_acquire(
        self,
        name: Name,
        *,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> AsyncGuard:
        """Acquires the lock if nobody holds it; see `Locker.try_acquire`."""
        return await self.acquire(
            name, wait=0, ttl=ttl, label=label, renew=renew, max_hold=max_hold, shared=shared
        )

    @awaited
    async def acquire_many(
        self,
        names: Iterable[Name],
        *,
        shared: Iterable[Name] | None = None,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
    ) -> AsyncGuards:
        """Acquires all of these locks or none; see `Locker.acquire_many`."""
        core = self._locker._core  # pyright: ignore[reportPrivateUsage]
        every, read = _all_names(names, shared)
        asked = terms(wait, ttl, label, renew, max_hold)
        leases = await run(lambda port: core.acquire_many(every, read, *asked, port))
        return AsyncGuards([AsyncGuard(lease) for lease in leases])

    def lock(
        self,
        name: Name,
        *,
        wait: SupportsFloat | None = None,
        ttl: SupportsFloat | None = None,
        label: str | None = None,
        renew: bool | None = None,
        max_hold: SupportsFloat | None = None,
        shared: bool | None = None,
    ) -> Lock:
        """The lock as a context manager; see `Locker.lock`."""
        return self._locker.lock(
            name, wait=wait, ttl=ttl, label=label, renew=renew, max_hold=max_hold, shared=shared
        )

    async def info(self, name: Name) -> list[NodeInfo]:
        """Returns what each node reports about the lock; see `Locker.info`."""
        core, asked = self._locker._core, name_bytes(name)  # pyright: ignore[reportPrivateUsage]
        return list(await run(lambda port: core.info(asked, port)))

    async def settle(self) -> list[NodeVote]:
        """Waits until everything that was sent is carried out; see `Locker.settle`."""
        core = self._locker._core  # pyright: ignore[reportPrivateUsage]
        return list(await run(core.settle))


# As they were written: a test may replace them.
_ACQUIRE, _ACQUIRE_ASYNC, _AIO = Locker.acquire, AsyncLocker.acquire, Locker.aio


class Lock(Made, _lockmod.Blocks):
    """A lock by its name, for `with` and `async with`. It may be used again, and by many at once.

    A block may end in another thread or task than it began in, as in a generator that a framework
    resumes. A `with` statement ends its own block, in whatever order several end. Blocks without
    one, as those of an `ExitStack`, end the last of their thread or task first: for another order,
    use `enter_context(locker.acquire(...))`, whose guard knows which is which.

    A signal handler that raises, as that of Ctrl-C does, leaves no lock of a `with` block behind:
    not while the block begins, nor while it ends. CPython can still run a handler directly before
    it calls `__exit__` (before 3.11) or directly after `__enter__` (from 3.14 on). If it raises
    there, the lock is held for as long as this object lives. The same if a loop is closed while a
    task is in a block, or waits for its lock (`asyncio.run` cancels such tasks first). In a loop,
    such a handler may stop the loop's own code, so that a task waits for ever, with asyncio alone
    too: give the handler to the loop's `add_signal_handler`, which runs it between tasks.

    >>> lock = locker.lock("report-9")
    >>> with lock as guard:
    ...     guard.fence
    1
    >>> async def work():
    ...     async with lock as guard:
    ...         return guard.fence
    >>> asyncio.run(work())
    2
    """

    _part = Options
    _source = "`lock(name)` of a Locker returns one; for redis-py's Lock see lockmod.compat"
    _new = _lockmod.Blocks.__new__

    def __init__(self, locker: Locker, name: Name, options: Options) -> None:
        self._locker, self._name, self._options = locker, name_bytes(name), options
        self._given = name if isinstance(name, str) else self._name
        self._forks = _forks

    def __repr__(self) -> str:
        shared = ", shared" if self._options.shared else ""
        return f"<{type(self).__name__} {shown(self._name)}{shared}>"

    def _acquire(self) -> Guard:
        """For a `with` block, whose beginning and end are native."""
        acquire = self._locker.acquire
        if getattr(acquire, "__func__", None) is not _ACQUIRE:
            return acquire(self._given, **self._options.given())
        # What is not overridden would only check all options again.
        core = self._locker._core  # pyright: ignore[reportPrivateUsage]
        return Guard(core.acquire(self._name, *self._options))

    async def _acquire_async(self) -> AsyncGuard:
        if type(self._locker).aio is not _AIO or AsyncLocker.acquire is not _ACQUIRE_ASYNC:
            return await self._locker.aio.acquire(self._given, **self._options.given())
        core = self._locker._core  # pyright: ignore[reportPrivateUsage]
        return AsyncGuard(await run(lambda port: core.acquire(self._name, *self._options, port)))

    async def __aenter__(self) -> AsyncGuard:
        guard = await self._acquire_async()
        try:
            await guard.__aenter__()
            self._forks = _forks
            self._begin(asyncio.current_task(), guard)
            return guard
        except BaseException:
            # A signal handler has raised, or the lease has ended.
            self._forget(guard)
            guard._abandon()  # pyright: ignore[reportPrivateUsage]
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In a forked child no loop runs, and no task. All guards there are the parent's.
        is_here = self._forks == _forks
        guard = None if is_here else self._first()
        if guard is None:
            try:
                task = asyncio.current_task()
            except RuntimeError:
                # The task is collected after its loop was closed, and the guard releases with it.
                return
            guard = self._leave(task)
        await guard.__aexit__(kind, error, trace)


def _all_names(
    names: Iterable[Name], shared: Iterable[Name] | None
) -> tuple[list[bytes], list[bytes]]:
    """The names of several locks, and of those to be read."""
    read = () if shared is None else shared
    return all_bytes("the names are", names), all_bytes("shared is", read)
