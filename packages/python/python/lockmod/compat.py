"""The interfaces of redis-py's locks, on lockmod: change one line to switch.

    from lockmod.compat import Lock        # was: from redis.lock import Lock
    from lockmod.compat import AsyncLock   # was: from redis.asyncio.lock import Lock

`redis` may be a redis-py client, whose server needs the module; a list of clients or URLs, which
makes a quorum; or a `lockmod.Locker`. The errors are redis-py's. As there, a lock ends `timeout`
seconds after it was acquired unless it is extended, and stays until then unless it is released.

What differs by design: every lock needs a `timeout`, a token cannot be chosen, the key is a
`fencelock` and not a string, and an extension never makes a lock shorter. Waiters stand in line
instead of polling, so `sleep` is not used. `fence` and `validity` are new, and so is `renew=True`,
for a lock that lasts for as long as its holder does.
"""

from __future__ import annotations

import logging
import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, TypeVar, Union, cast
from urllib.parse import quote

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, RedisError, ResponseError

from ._errors import HeldError, LockError as Failure, LostError, NoQuorumError, OptionError
from ._errors import RefusedError, TooLateError
from ._guard import AsyncGuard, Guard
from ._locker import Locker, NodeInfo
from ._options import Name, name_bytes, seconds

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["AsyncLock", "Lock", "LockError", "LockNotOwnedError"]

logger = logging.getLogger(__name__)

# How long to wait for a node's answer: the longest of these that fits into the lock's timeout. A
# few classes, so that locks with many timeouts share few connections.
_PATIENCE = (0.5, 0.2, 0.05, 0.01)

_LockerKey = tuple[tuple[str, ...], float, Union[str, None], Union[str, None], Union[str, None]]
_lockers: dict[_LockerKey, Locker] = {}
_making = threading.Lock()
_Held = TypeVar("_Held", Guard, AsyncGuard)
_T = TypeVar("_T")


def _url(client: object) -> tuple[str, dict[str, Any]]:
    """The URL of a client's server, and its other settings."""
    if isinstance(client, str):
        return client, {}
    pool: Any = getattr(client, "connection_pool", None)
    settings: dict[str, Any] | None = getattr(pool, "connection_kwargs", None)
    if settings is None:
        raise LockError(
            f"{type(client).__name__} does not lead to one server: give a client, a list of clients "
            "or URLs, or a lockmod.Locker"
        )
    is_encrypted = "SSL" in getattr(pool, "connection_class", type(None)).__name__
    user, password = settings.get("username"), settings.get("password")
    secret = ""
    if user or password:
        secret = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}@"
    database = settings.get("db") or 0
    if path := settings.get("path"):
        fields = [("user", user), ("pass", password), ("db", database)]
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in fields if value)
        return f"unix://{path}" + (f"?{query}" if query else ""), settings
    host = str(settings.get("host") or "localhost")
    host = f"[{host}]" if ":" in host else host
    scheme = "rediss" if is_encrypted else "redis"
    return f"{scheme}://{secret}{host}:{settings.get('port') or 6379}/{database}", settings


def _key(name: Name | int | float) -> bytes:
    """The name as redis-py encodes it: numbers become their text."""
    is_number = isinstance(name, (int, float)) and not isinstance(name, bool)
    return repr(name).encode() if is_number else name_bytes(cast("Name", name))


def _locker(redis: object, timeout: float) -> Locker:
    if isinstance(redis, Locker):
        return redis
    clients = list(cast("Iterable[object]", redis)) if isinstance(redis, (list, tuple)) else [redis]
    found = [_url(client) for client in clients]
    tls = found[0][1] if found else {}
    files = [cast("str | None", tls.get(name)) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")]
    patience = next((one for one in _PATIENCE if 4 * one <= timeout), _PATIENCE[-1])
    key: _LockerKey = (tuple(url for url, _ in found), patience, files[0], files[1], files[2])
    with _making:
        if key not in _lockers:
            _lockers[key] = Locker(
                key[0], ttl=30, timeout=patience, cacert=key[2], cert=key[3], key=key[4]
            )
        return _lockers[key]


class _Base:
    """The part that does not depend on how a lock waits."""

    def __init__(
        self,
        redis: object,
        name: Name | int | float,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        renew: bool = False,
        label: str | None = None,
    ) -> None:
        if not timeout:
            raise self._error(
                "a lock without an end does not exist: if its holder crashes, nobody could ever "
                "acquire it again; give timeout=30, and renew=True if it has to last for as long as "
                "its holder does",
                name,
            )
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self._key = self._checked(lambda: _key(name))
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.renew, self.label = renew, label
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        length = self._checked(lambda: seconds("timeout", timeout))
        self._locker = self._checked(lambda: _locker(redis, length or 0))
        # Questions do not depend on the lock's timeout: they wait for the longest time.
        self._asked = self._checked(lambda: _locker(redis, math.inf))

    def _checked(self, check: Callable[[], _T]) -> _T:
        try:
            return check()
        except OptionError as error:
            raise self._error(str(error)) from error

    def _error(self, text: str, name: object = None) -> LockError:
        error = LockError(text)
        name = self.name if name is None else name
        error.lock_name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return error

    def _not_owned(self, what: str) -> LockNotOwnedError:
        return LockNotOwnedError(f"Cannot {what} a lock that's no longer owned")

    def _options(
        self, blocking: bool | None, blocking_timeout: float | None, token: object
    ) -> dict[str, Any]:
        if token is not None:
            raise self._error(
                "a token cannot be chosen, for whoever knows it holds the lock: use label= to say "
                "who holds it, and fence to tell one grant from the next"
            )
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        wait = self._checked(lambda: seconds("blocking_timeout", limit))
        wait = math.inf if wait is None else max(0.0, wait)
        if not (self.blocking if blocking is None else blocking):
            wait = 0
        return {"wait": wait, "ttl": self.timeout, "label": self.label, "renew": self.renew}

    def _failed(self, error: Failure) -> RedisError:
        """The error that users of redis-py expect for this cause."""
        if isinstance(error, NoQuorumError):
            return RedisConnectionError(str(error))
        if isinstance(error, RefusedError):
            return ResponseError(str(error))
        return self._error(str(error))

    def _kept(self, guard: _Held) -> _Held:
        """As with redis-py, the lock stays if the object is dropped without a release."""
        guard._lease.keep()  # pyright: ignore[reportPrivateUsage]
        self.local.guard = guard
        return guard

    def _guard(self) -> Any:
        return getattr(self.local, "guard", None)

    def _ours(self, what: str) -> Any:
        guard = self._guard()
        if guard is None:
            raise self._error(f"Cannot {what} a lock that's not owned or is already unlocked.")
        return guard

    def _later(self, guard: Guard | AsyncGuard, additional_time: float, replace_ttl: bool) -> float:
        """The ttl from now that ends `additional_time` after the present end.

        The client computes it, so an extension that is repeated is harmless. The validity is
        shorter than a ttl by the drift allowance.
        """
        more = self._checked(lambda: seconds("additional_time", additional_time))
        if more is None:
            raise self._error("additional_time is None: give a number of seconds")
        if not replace_ttl:
            return (guard.validity + more + 0.002) / 0.99
        # A lock that is renewed is not made shorter by its next renewal either.
        return max(more, self.timeout) if self.renew else more

    def _is_held(self, told: list[NodeInfo], fence: int | None) -> bool:
        """Whether a quorum holds it, for the writer with this fence or, with None, for anyone.

        A node that did not answer has not said no.
        """

        def holds_it(node: NodeInfo) -> bool:
            # Later readers have the fence of the last writer.
            is_ours = fence is None or (node.fence == fence and node.readers == 0)
            return node.state == "held" and is_ours

        holds = [holds_it(node) for node in told]
        silent = [node for node in told if node.vote is not None]
        quorum = len(told) // 2 + 1
        if sum(holds) >= quorum:
            return True
        if sum(holds) + len(silent) < quorum:
            return False
        said = ", ".join(f"{node.node}: {node.vote.text}" for node in silent if node.vote)
        raise RedisConnectionError(f"too few nodes tell who holds the lock: {said}")

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


class Lock(_Base):
    """`redis.lock.Lock` over lockmod; see the module's text for what differs."""

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise self._error("Unable to acquire lock within the time specified")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is acquired, False if it was not in time."""
        options = self._options(blocking, blocking_timeout, token)
        try:
            self._kept(self._locker.acquire(self._key, **options))
        except (HeldError, TooLateError):
            return False
        except Failure as error:
            raise self._failed(error) from error
        return True

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        told = self._asked.info(self._key)
        return self._is_held(told, None)

    def owned(self) -> bool:
        """Whether this object holds the lock: asked of the nodes, without changing anything."""
        guard: Guard | None = self._guard()
        if guard is None or guard.lost:
            return False
        told = self._asked.info(self._key)
        return self._is_held(told, guard.fence)

    def release(self) -> None:
        """Releases the lock; raises `LockNotOwnedError` if it had ended before."""
        guard: Guard = self._ours("release")
        self.local.guard = None
        is_over = guard.lost.is_set()
        try:
            guard.release()
        except LostError as error:
            raise self._not_owned("release") from error
        except Failure as error:
            raise self._failed(error) from error
        if is_over:
            raise self._not_owned("release")

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds time to the lock; or makes it last this long from now on, but never shorter."""
        guard: Guard = self._ours("extend")
        return self._extend(guard, self._later(guard, additional_time, replace_ttl), "extend")

    def reacquire(self) -> Literal[True]:
        """Makes the lock last for its timeout from now on."""
        return self._extend(self._ours("reacquire"), self.timeout, "reacquire")

    def _extend(self, guard: Guard, ttl: float, what: str) -> Literal[True]:
        try:
            guard.extend(ttl)
        except LostError as error:
            raise self._not_owned(what) from error
        except Failure as error:
            raise self._failed(error) from error
        return True


class AsyncLock(_Base):
    """`redis.asyncio.lock.Lock` over lockmod; see the module's text for what differs.

    `thread_local` is about threads, as in redis-py: the tasks of a thread share what it holds.
    """

    async def __aenter__(self) -> AsyncLock:
        if await self.acquire():
            return self
        raise self._error("Unable to acquire lock within the time specified")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is acquired, False if it was not in time."""
        options = self._options(blocking, blocking_timeout, token)
        try:
            self._kept(await self._locker.aio.acquire(self._key, **options))
        except (HeldError, TooLateError):
            return False
        except Failure as error:
            raise self._failed(error) from error
        return True

    async def locked(self) -> bool:
        """Whether anybody holds the lock."""
        told = await self._asked.aio.info(self._key)
        return self._is_held(told, None)

    async def owned(self) -> bool:
        """Whether this object holds the lock: asked of the nodes, without changing anything."""
        guard: AsyncGuard | None = self._guard()
        if guard is None or guard.lost:
            return False
        told = await self._asked.aio.info(self._key)
        return self._is_held(told, guard.fence)

    async def release(self) -> None:
        """Releases the lock; raises `LockNotOwnedError` if it had ended before."""
        guard: AsyncGuard = self._ours("release")
        self.local.guard = None
        is_over = guard.lost.is_set()
        try:
            await guard.release()
        except LostError as error:
            raise self._not_owned("release") from error
        except Failure as error:
            raise self._failed(error) from error
        if is_over:
            raise self._not_owned("release")

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds time to the lock; or makes it last this long from now on, but never shorter."""
        guard: AsyncGuard = self._ours("extend")
        return await self._extend(guard, self._later(guard, additional_time, replace_ttl), "extend")

    async def reacquire(self) -> Literal[True]:
        """Makes the lock last for its timeout from now on."""
        return await self._extend(self._ours("reacquire"), self.timeout, "reacquire")

    async def _extend(self, guard: AsyncGuard, ttl: float, what: str) -> Literal[True]:
        try:
            await guard.extend(ttl)
        except LostError as error:
            raise self._not_owned(what) from error
        except Failure as error:
            raise self._failed(error) from error
        return True
