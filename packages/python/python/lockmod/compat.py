"""The interfaces of redis-py's locks, on lockmod: change one line to switch.

    from lockmod.compat import Lock        # was: from redis.lock import Lock
    from lockmod.compat import AsyncLock   # was: from redis.asyncio.lock import Lock

`redis` may be a client of redis-py or valkey-py, also one for a master under Sentinel, whose server
needs the module; a list of clients or URLs, which makes a quorum; or a `lockmod.Locker`. For a
Cluster give its URL, `redis+cluster://host:port,host:port`, and not its client. The errors are
redis-py's, or valkey-py's if only that is installed. As there, a lock ends `timeout` seconds after
it was acquired unless it is extended, and stays until then unless it is released.

What differs, by design:

- Every lock needs a `timeout`. With `renew=True` it lasts for as long as its holder does.
- A token cannot be chosen: `acquire(token=...)` is refused, and a `local.token` that is set has no
  effect. While the lock is held, `local.token` is its fence in bytes, such as `b"15"`.
- `name` and `redis` cannot be set: make another lock.
- `Lock` and `AsyncLock` are no subclasses of redis-py's: change the annotations and `isinstance`
  checks that name those too.
- The key is a `fencelock` and not a string, and has no expiry of its own: instead of `GET` and
  `PTTL`, ask `fence` and `validity`, or `Locker.info`.
- An extension never makes a lock shorter, and `additional_time` may not take away all of it.
- Waiters stand in line instead of polling, so `sleep` is not used. If no quorum of nodes can be
  reached, or has authority (a new master lacks it for some seconds), `acquire` raises
  `ConnectionError` at once, as in redis-py, or after 2 to 2.5 s if they are silent. A node that
  refused a connection is tried again after 10 ms to half a second; until then it counts as one
  that does. If the nodes are lost later, while another holds the lock, the wait goes on until they
  are back, and raises only at its end. It also waits while nodes are in quarantine after a restart.
- A node that was silent for some seconds is not waited for until it answers again: meanwhile, and
  at the first call after that, it counts as one that does not answer.
- After `gevent.monkey.patch_all()` a `Lock` polls, with `sleep` between its tries, because a waiter
  in line would stop all greenlets, the holder too. Each call still stops them until the nodes have
  answered.
- `do_acquire`, `do_release`, `do_extend` and `do_reacquire` are not called, so a subclass that
  has one is refused.
- Clients are read for the addresses of their servers, and not used: their retries, their time
  limits and their `encoding` have no effect. Settings that cannot be carried over are refused,
  such as `ssl_cert_reqs="none"`.
- A node has half a second to answer; if `timeout` is below 2 s, the longest of 0.2, 0.05 and 0.01
  s that fits into it four times. A slower node counts as one that does not answer: then every
  method, and the end of a block, may raise `ConnectionError`, where redis-py goes on waiting. If
  your network is that slow, give a `lockmod.Locker` with a longer `timeout` in place of the
  client.
- After a fork the child does not hold what its parent holds: `owned` is False there, and
  `release`, `extend` and `reacquire` raise `LockError`. With redis-py the child has the token too.
- The logger is `lockmod.compat`.

`fence` and `validity` are new, and so are `renew` and `label`.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterable, Literal
from typing import NoReturn, SupportsFloat, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from . import _lockmod, _once
from ._clients import Files, exceptions, server
from ._errors import ForkedError, HeldError, LockError as Failure, LostError, NoQuorumError
from ._errors import OptionError, RefusedError, TooLateError
from ._guard import AsyncGuard, Guard
from ._locker import Locker, NodeInfo
from ._made import Single, adopt, explained, unmade
from ._options import Name, name_bytes, number
from ._tries import Tries, is_gevent

if TYPE_CHECKING:
    from types import TracebackType

    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import AuthenticationError, LockError, LockNotOwnedError
    from redis.exceptions import NoPermissionError, RedisError, ResponseError
else:
    _raised = exceptions()
    RedisConnectionError = _raised.ConnectionError
    AuthenticationError, NoPermissionError = _raised.AuthenticationError, _raised.NoPermissionError
    LockError, LockNotOwnedError = _raised.LockError, _raised.LockNotOwnedError
    ResponseError = _raised.ResponseError

__all__ = ["AsyncLock", "Lock", "LockError", "LockNotOwnedError"]

logger = logging.getLogger(__name__)

# How long to wait for a node's answer: the longest of these that fits into the lock's timeout. A
# few classes, so that locks with many timeouts share few connections.
_PATIENCE = (0.5, 0.2, 0.05, 0.01)
# The timeouts that a lock may have, in seconds: three times the shortest of these, and a day.
_SHORTEST, _LONGEST = 0.03, 86_400.0

# The votes of nodes that refuse, so that a retry does not help.
_REFUSALS = ("module_missing", "no_permission", "refused", "wrong_type")
# The names of options in texts about them.
_NAMES = re.compile(r"(?<![-.\w])(say so with max_ttl|(?:the )?ttl|timeout)\b")

_NO_FILES: Files = (None, None, None)
# Each lives for as long as a client or a lock that has it; one that was made of texts, for ever.
_lockers: WeakValueDictionary[tuple[tuple[str, ...], float, Files], Locker]
_lockers = WeakValueDictionary()
_having: WeakKeyDictionary[object, set[Locker]] = WeakKeyDictionary()
_making = threading.RLock()
_T = TypeVar("_T")


def _key(name: Name | int | float) -> bytes:
    """The name as redis-py encodes it: numbers become their text."""
    is_number = isinstance(name, (int, float)) and not isinstance(name, bool)
    return repr(name).encode() if is_number else name_bytes(cast("Name", name))


def _clients(redis: object) -> list[object]:
    """The clients that were given: one, or one for each node."""
    return list(cast("Iterable[object]", redis)) if isinstance(redis, (list, tuple)) else [redis]


def _locker(redis: object, timeout: float) -> Locker:
    if isinstance(redis, Locker):
        return redis
    clients = _clients(redis)
    if clients and len(clients) % 2 == 0:
        raise OptionError(
            f"{len(clients)} clients survive no more failures than {len(clients) - 1}: add or "
            "remove one, or give a lockmod.Locker with allow_even_nodes=True"
        )
    servers = [server(client) for client in clients]
    files = {server.files for server in servers if server.files is not None}
    if len(files) > 1:
        raise OptionError("the clients differ in their files for TLS: give a lockmod.Locker")
    if 0 < timeout < _SHORTEST:
        raise OptionError(
            f"timeout {timeout:g} s is too short: give {_SHORTEST:g} s to {_LONGEST:g} s"
        )
    # A timeout that is too long is refused with the range that the shortest of these leaves.
    fitting = (one for one in _PATIENCE if 4 * one <= timeout <= _LONGEST)
    patience = next(fitting, _PATIENCE[-1])
    locker = _shared(tuple(one.url for one in servers), patience, next(iter(files), _NO_FILES))
    with _making:
        for client in clients:
            owner: object = Locker if isinstance(client, str) else client
            _having.setdefault(owner, set()).add(locker)
    return locker


def _shared(urls: tuple[str, ...], patience: float, files: Files) -> Locker:
    """The locker with these settings, which many locks share."""
    cacert, cert, key = files
    with _making:
        locker = _lockers.get((urls, patience, files))
        if locker is None:
            locker = Locker(urls, ttl=30, timeout=patience, cacert=cacert, cert=cert, key=key)
            _lockers[urls, patience, files] = locker
        return locker


# A longer `timeout` of these locks gives nodes no more time.
_ADVICE = (
    "a slow network needs a longer ttl or timeout",
    "for a slow network give a lockmod.Locker with a longer timeout",
)


def _spelled(text: str, length: str) -> str:
    """The text about a wrong option, with the names that users of redis-py know."""
    names = {
        "ttl": length,
        "the ttl": length,
        "timeout": "the Locker's timeout",
        "say so with max_ttl": "give a lockmod.Locker with max_ttl",
    }
    return _NAMES.sub(lambda found: names[found[0]], text)


def _refusal(said: str) -> RedisError:
    """The error that redis-py raises for such a refusal."""
    if "WRONGPASS" in said or "NOAUTH" in said:
        return AuthenticationError(said)
    return NoPermissionError(said) if "NOPERM" in said else ResponseError(said)


def _forked() -> None:
    """Runs in a forked child: a thread that does not exist there may hold the mutex."""
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class _Base(Single):
    """The part that does not depend on how a lock waits."""

    # The block that begins in this thread, task or greenlet.
    _entry: ContextVar[object] = ContextVar("lockmod.compat")

    @explained
    def __init__(
        self,
        redis: object,
        name: Name | int | float,
        timeout: SupportsFloat | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: SupportsFloat | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        renew: bool | None = None,
        label: str | None = None,
    ) -> None:
        self._redis, self._name, self.timeout, self.sleep = redis, name, timeout, sleep
        self._key = self._checked(lambda: _key(name))
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.renew, self.label = renew, label
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        self._made: tuple[float, Locker] | None = None
        self._check_client()
        _ = self._locker
        # Questions do not depend on the lock's timeout: they wait for the longest time.
        self._asked = self._checked(lambda: _locker(redis, _LONGEST))
        asked = self._options(self._tries(None, None, None))
        with self._failing():
            self._locker.lock(self._key, **asked)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt(cls)
        for name in ("do_acquire", "do_release", "do_extend", "do_reacquire"):
            if name in vars(cls):
                raise TypeError(f"{cls.__name__}.{name} would not be called: override {name[3:]}")

    # Type checkers know which attributes there are.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if "local" not in vars(self) and not name.startswith("__"):
                raise unmade(self)
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @property
    def redis(self) -> object:
        """The client, or what was given for it. It cannot be set: make another lock."""
        return self._redis

    @property
    def name(self) -> Name | int | float:
        """The name as it was given. It cannot be set: make another lock."""
        return self._name

    def _check_client(self) -> None:
        """Refuses clients that the original could not use either."""

    def _length(self) -> float:
        """The timeout, which may have been set anew."""
        if not self.timeout:
            raise self._error(
                "a lock without an end does not exist: if its holder crashes, nobody could ever "
                "acquire it again; give timeout=30, and renew=True if it has to last for as long "
                "as its holder does"
            )
        allowed = f"{_SHORTEST:g} to {_LONGEST:g}"
        return self._checked(lambda: number("timeout", self.timeout, allowed)) or 0

    @property
    def _locker(self) -> Locker:
        """The locker whose time for answers fits into the timeout."""
        length = self._length()
        if self._made is None or self._made[0] != length:
            self._made = length, self._checked(lambda: _locker(self.redis, length))
        return self._made[1]

    def _checked(self, check: Callable[[], _T]) -> _T:
        try:
            return check()
        except OptionError as error:
            raise self._error(str(error)) from error

    def _error(self, text: str, kind: type[LockError] = LockError) -> LockError:
        error, name = kind(text), self.name
        error.lock_name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return error

    def _not_owned(self, what: str) -> LockError:
        return self._error(f"Cannot {what} a lock that's no longer owned", LockNotOwnedError)

    def _tries(
        self,
        blocking: bool | None,
        blocking_timeout: SupportsFloat | None,
        token: object,
        pause: float | None = None,
    ) -> Tries:
        if token is not None:
            raise self._error(
                "a token cannot be chosen, for whoever knows it holds the lock: use label= to say "
                "who holds it, and fence to tell one grant from the next"
            )
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        allowed = "0 or more"
        wait = self._checked(lambda: number("blocking_timeout", limit, allowed, endless=True))
        if wait is not None and math.isnan(wait):
            raise self._error(f"blocking_timeout is nan: give a number of seconds, {allowed}")
        wait = math.inf if wait is None else max(0.0, wait)
        if not (self.blocking if blocking is None else blocking):
            wait = 0
        return Tries(wait, pause)

    def _options(self, tries: Tries) -> dict[str, Any]:
        return {
            "wait": tries.wait,
            "ttl": self._length(),
            "label": self.label,
            "renew": False if self.renew is None else self.renew,
        }

    def _failed(self, error: Failure, length: str = "timeout") -> RedisError:
        """The error that users of redis-py expect for this cause. They call the ttl `length`."""
        if isinstance(error, OptionError):
            return self._error(_spelled(str(error), length))
        if isinstance(error, NoQuorumError):
            return RedisConnectionError(str(error).replace(*_ADVICE))
        if isinstance(error, RefusedError):
            return _refusal(str(error))
        return self._error(str(error))

    def _goes_on(self, tries: Tries, error: Failure) -> bool:
        """Whether `acquire` tries again after this error; if not, the lock was not free in time.

        Raises what users of redis-py expect for any other cause.
        """
        if tries.go_on(error):
            return True
        if isinstance(error, (HeldError, LostError, TooLateError)):
            return False
        raise self._failed(error) from error

    @contextmanager
    def _failing(self) -> Generator[None, None, None]:
        """Raises what users of redis-py expect if a question is not answered."""
        try:
            yield
        except Failure as error:
            raise self._failed(error) from error

    @contextmanager
    def _failing_as(self, what: str) -> Generator[None, None, None]:
        """Raises what users of redis-py expect if the held lock cannot be released or extended."""
        try:
            yield
        except LostError as error:
            raise self._not_owned(what) from error
        except Failure as error:
            raise self._failed(error, "the lock's new timeout") from error

    @contextmanager
    def _leaving(self, error: BaseException | None) -> Generator[None, None, None]:
        """Raises or logs that a lock was lost before its block ended, perhaps with an error."""
        try:
            yield
        except LockError as failure:
            if error is not None and isinstance(failure.__cause__, ForkedError):
                # The lock is the parent's, and the child ends by itself.
                return
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")

    def _keep(self, guard: Guard | AsyncGuard) -> None:
        """As with redis-py, the lock stays if the object is dropped without a release.

        Raises `LostError` if the lease ended before the program saw it: the event loop was blocked,
        or the thread did not run.
        """
        before = self._guard(), getattr(self.local, "token", None)
        # Others may share the lock: a block that does not begin releases what it has acquired.
        setattr(guard, "_entry", self._entry.get(None))
        # Before it is kept, so that the lock is released whatever happens in between.
        self.local.guard, self.local.token = guard, str(guard.fence).encode()
        try:
            guard.keep()
        except LostError:
            if self.local.guard is guard:
                self.local.guard, self.local.token = before
            raise

    def _guard(self) -> Any:
        return getattr(self.local, "guard", None)

    def _ours(self, what: str) -> Any:
        guard = self._guard()
        if guard is None:
            of = "a lock that's not owned or is already unlocked."
            raise self._error(f"Cannot {what} {of if what == 'release' else 'an unlocked lock'}")
        return guard

    def _give_up(self, guard: Guard | AsyncGuard) -> None:
        """Releases without waiting for any node; the lock does not have it any more."""
        if self._guard() is guard:
            self.local.guard = self.local.token = None
        with suppress(ForkedError):
            guard._abandon()  # pyright: ignore[reportPrivateUsage]

    def _given_up(self) -> Any:
        """What was held, and is no longer held from here on."""
        guard = self._ours("release")
        self.local.guard = self.local.token = None
        return guard

    def _later(
        self, guard: Guard | AsyncGuard, additional_time: SupportsFloat, replace_ttl: bool
    ) -> float:
        """The ttl from now that ends `additional_time` after the present end.

        The client computes it, so an extension that is repeated is harmless. The validity is
        shorter than a ttl by the drift allowance.
        """
        allowed = "so that the lock has some left"
        more = self._checked(lambda: number("additional_time", additional_time, allowed))
        if more is None:
            raise self._error(f"additional_time is None: give a number of seconds, {allowed}")
        ttl = more if replace_ttl else (guard.validity + more + 0.002) / 0.99
        if not ttl > 0:
            # It may have no time left because it is lost, or another process's.
            with self._failing_as("extend"):
                guard.check()
            raise self._error(
                f"additional_time is {additional_time}, and nothing would be left: give a larger "
                "one, or release the lock"
            )
        # A lock that is renewed is not made shorter by its next renewal either.
        return max(ttl, self._length()) if replace_ttl and self.renew else ttl

    def _is_held(self, told: list[NodeInfo], fence: int | None) -> bool:
        """Whether a quorum holds it, for the writer with this fence or, with None, for anyone.

        A node that did not answer, or that refuses to, has not said no. If too few tell, the error
        is that of an acquisition.
        """

        def holds_it(node: NodeInfo) -> bool:
            # Later readers have the fence of the last writer.
            is_ours = fence is None or (node.fence == fence and node.readers == 0)
            return node.state == "held" and is_ours

        holds = [holds_it(node) for node in told]
        silent = [node.vote for node in told if node.vote is not None]
        quorum = len(told) // 2 + 1
        if sum(holds) >= quorum:
            return True
        if sum(holds) + len(silent) < quorum:
            return False
        said = ", ".join(f"{vote.node}: {vote.text}" for vote in silent)
        text = f"too few nodes tell who holds the lock: {said}"
        refusing = sum(vote.vote in _REFUSALS for vote in silent)
        raise _refusal(text) if len(told) - refusing < quorum else RedisConnectionError(text)

    @property
    def fence(self) -> int:
        """The fencing token, for whatever the lock protects."""
        fence: int = self._ours("tell the fence of").fence
        return fence

    @property
    def validity(self) -> float:
        """How many seconds the lock may still be relied on."""
        guard = self._guard()
        return 0.0 if guard is None else float(guard.validity)


class Lock(_lockmod.Entry, _Base):
    """`redis.lock.Lock` over lockmod; see the module's text for what differs."""

    def _check_client(self) -> None:
        commands = [getattr(client, "execute_command", None) for client in _clients(self.redis)]
        if any(iscoroutinefunction(command) for command in commands):
            raise self._error(
                "the client is one of redis.asyncio, and this lock would block its loop: "
                "use AsyncLock"
            )

    def _begin(self) -> Lock:
        """For a `with` block, whose beginning and end are native."""
        if self.acquire():
            return self
        raise self._error("Unable to acquire lock within the time specified")

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._leaving(error):
            self.release()

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: SupportsFloat | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is acquired, False if it was not in time.

        Raises `ConnectionError` at once if no quorum of nodes can be reached or has authority, or
        after 2 to 2.5 s if they are silent. While another holds the lock, or nodes are in
        quarantine, this waits, also for nodes that are lost meanwhile, until `blocking_timeout` is
        over; without one, for as long as it takes.
        """
        pause = sleep or self.sleep or 0.1 if is_gevent() else None
        tries = self._tries(blocking, blocking_timeout, token, pause)
        while True:
            try:
                self._keep(self._locker.acquire(self._key, **self._options(tries)))
                return True
            except Failure as error:
                if not self._goes_on(tries, error):
                    return False

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        with self._failing():
            told = self._asked.info(self._key)
        return self._is_held(told, None)

    def owned(self) -> bool:
        """Whether this object holds the lock: asked of the nodes, without changing anything."""
        guard: Guard | None = self._guard()
        if guard is None or guard.lost:
            return False
        with self._failing():
            told = self._asked.info(self._key)
        return self._is_held(told, guard.fence)

    def release(self) -> None:
        """Releases the lock; raises `LockNotOwnedError` if it had ended before."""
        guard: Guard = self._given_up()
        with self._failing_as("release"):
            guard.release()

    def extend(
        self, additional_time: SupportsFloat, replace_ttl: bool = False
    ) -> Literal[True]:
        """Adds time to the lock; or makes it last this long from now on, but never shorter."""
        guard: Guard = self._ours("extend")
        return self._extend(guard, self._later(guard, additional_time, replace_ttl), "extend")

    def reacquire(self) -> Literal[True]:
        """Makes the lock last for its timeout from now on."""
        return self._extend(self._ours("reacquire"), self._length(), "reacquire")

    def _extend(self, guard: Guard, ttl: float, what: str) -> Literal[True]:
        with self._failing_as(what):
            guard.extend(ttl)
        return True


class AsyncLock(_Base):
    """`redis.asyncio.lock.Lock` over lockmod; see the module's text for what differs.

    `thread_local` is about threads, as in redis-py: the tasks of a thread share what it holds.
    """

    async def __aenter__(self) -> AsyncLock:
        outer, entry = self._entry.get(None), object()
        try:
            self._entry.set(entry)
            if not await self.acquire():
                raise self._error("Unable to acquire lock within the time specified")
            self._entry.set(outer)
            return self
        except BaseException:
            # A signal handler may have raised after the lock was acquired.
            guard = self._guard()
            if getattr(guard, "_entry", None) is entry:
                self._give_up(guard)
            self._entry.set(outer)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        has_looked, guard = False, None
        try:
            guard = self._guard()
            has_looked = True
            with self._leaving(error):
                await self.release()
        except BaseException:
            # Also after a signal handler that raises. After a release this does nothing.
            if not has_looked:
                guard = self._guard()
            if guard is not None:
                self._give_up(guard)
            raise

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: SupportsFloat | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is acquired, False if it was not in time.

        Raises `ConnectionError` at once if no quorum of nodes can be reached or has authority, or
        after 2 to 2.5 s if they are silent. While another holds the lock, or nodes are in
        quarantine, this waits, also for nodes that are lost meanwhile, until `blocking_timeout` is
        over; without one, for as long as it takes.
        """
        tries = self._tries(blocking, blocking_timeout, token)
        while True:
            try:
                self._keep(await self._locker.aio.acquire(self._key, **self._options(tries)))
                return True
            except Failure as error:
                if not self._goes_on(tries, error):
                    return False

    async def locked(self) -> bool:
        """Whether anybody holds the lock."""
        with self._failing():
            told = await self._asked.aio.info(self._key)
        return self._is_held(told, None)

    async def owned(self) -> bool:
        """Whether this object holds the lock: asked of the nodes, without changing anything."""
        guard: AsyncGuard | None = self._guard()
        if guard is None or guard.lost:
            return False
        with self._failing():
            told = await self._asked.aio.info(self._key)
        return self._is_held(told, guard.fence)

    async def release(self) -> None:
        """Releases the lock; raises `LockNotOwnedError` if it had ended before."""
        guard: AsyncGuard = self._given_up()
        with self._failing_as("release"):
            await guard.release()

    async def extend(
        self, additional_time: SupportsFloat, replace_ttl: bool = False
    ) -> Literal[True]:
        """Adds time to the lock; or makes it last this long from now on, but never shorter."""
        guard: AsyncGuard = self._ours("extend")
        return await self._extend(guard, self._later(guard, additional_time, replace_ttl), "extend")

    async def reacquire(self) -> Literal[True]:
        """Makes the lock last for its timeout from now on."""
        return await self._extend(self._ours("reacquire"), self._length(), "reacquire")

    async def _extend(self, guard: AsyncGuard, ttl: float, what: str) -> Literal[True]:
        with self._failing_as(what):
            await guard.extend(ttl)
        return True


_once.remember()
