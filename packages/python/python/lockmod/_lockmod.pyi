"""The native part. Without a port a call blocks; with one it goes on in the background."""

from asyncio import Future
from types import ModuleType, TracebackType
from typing import Any, Generic, TypeVar, overload

from ._errors import LockError, LostError, NodeVote
from ._guard import AsyncGuard, Guard
from ._locker import NodeInfo
from ._options import Length

_Self = TypeVar("_Self")
_T = TypeVar("_T", covariant=True)

__version__: str

class Port:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def needs_flush(self) -> bool: ...
    def flush(self) -> None: ...
    def drive(self) -> None: ...
    def leave(self) -> None: ...
    def deliver(
        self, waiting: dict[int, Future[Any]], watching: dict[int, Future[Any]]
    ) -> None: ...
    def take(self) -> list[tuple[int, object]]: ...

class Call(Generic[_T]):
    @property
    def number(self) -> int: ...
    def cancel(self) -> None: ...

class Exit:
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Entry:
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Blocks:
    def __enter__(self) -> Guard: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def _begin(self, task: object, guard: AsyncGuard) -> None: ...
    def _forget(self, guard: AsyncGuard) -> None: ...
    def _leave(self, task: object) -> AsyncGuard: ...
    def _first(self) -> AsyncGuard | None: ...

class Lease:
    @property
    def fence(self) -> int: ...
    @property
    def name(self) -> bytes: ...
    def validity(self) -> float: ...
    def is_lost(self) -> bool: ...
    def is_exclusive(self) -> bool: ...
    def loss(self) -> LostError | None: ...
    def check(self) -> None: ...
    @overload
    def lost(self, timeout: Length | None) -> str | None: ...
    @overload
    def lost(self, timeout: Length | None, port: Port) -> Call[str | None]: ...
    @overload
    def extend(self, ttl: Length | None) -> None: ...
    @overload
    def extend(self, ttl: Length | None, port: Port) -> Call[None]: ...
    @overload
    def downgrade(self) -> None: ...
    @overload
    def downgrade(self, port: Port) -> Call[None]: ...
    @overload
    def release(self) -> None: ...
    @overload
    def release(self, port: Port) -> Call[None]: ...
    def keep(self) -> None: ...
    def abandon(self) -> None: ...

class Core:
    def __init__(
        self,
        nodes: list[str],
        *,
        ttl: Length | None,
        max_ttl: Length | None,
        timeout: Length | None,
        wait: Length | None,
        drift: Length | None,
        lost_margin: Length | None,
        renew: bool,
        max_hold: Length | None,
        label: str,
        allow_even_nodes: bool,
        cacert: str | None,
        cert: str | None,
        key: str | None,
    ) -> None: ...
    def shown(self) -> str: ...
    def close(self) -> None: ...
    def check_open(self) -> None: ...
    @overload
    def acquire(
        self,
        name: bytes,
        wait: Length | None,
        ttl: Length | None,
        label: str | None,
        renew: bool | None,
        max_hold: Length | None,
        shared: bool,
    ) -> Lease: ...
    @overload
    def acquire(
        self,
        name: bytes,
        wait: Length | None,
        ttl: Length | None,
        label: str | None,
        renew: bool | None,
        max_hold: Length | None,
        shared: bool,
        port: Port,
    ) -> Call[Lease]: ...
    def check(
        self,
        name: bytes,
        wait: Length | None,
        ttl: Length | None,
        label: str | None,
        renew: bool | None,
        max_hold: Length | None,
        shared: bool,
    ) -> None: ...
    @overload
    def acquire_many(
        self,
        names: list[bytes],
        shared: list[bytes],
        wait: Length | None,
        ttl: Length | None,
        label: str | None,
        renew: bool | None,
        max_hold: Length | None,
    ) -> list[Lease]: ...
    @overload
    def acquire_many(
        self,
        names: list[bytes],
        shared: list[bytes],
        wait: Length | None,
        ttl: Length | None,
        label: str | None,
        renew: bool | None,
        max_hold: Length | None,
        port: Port,
    ) -> Call[list[Lease]]: ...
    @overload
    def info(self, name: bytes) -> tuple[NodeInfo, ...]: ...
    @overload
    def info(self, name: bytes, port: Port) -> Call[tuple[NodeInfo, ...]]: ...
    @overload
    def settle(self) -> tuple[NodeVote, ...]: ...
    @overload
    def settle(self, port: Port) -> Call[tuple[NodeVote, ...]]: ...

@overload
def release_all(leases: list[Lease]) -> list[LockError | None]: ...
@overload
def release_all(leases: list[Lease], port: Port) -> Call[list[LockError | None]]: ...
def modules() -> dict[str, ModuleType]: ...
def split_nodes(text: str) -> list[str]: ...
def sockets() -> list[tuple[int, int]]: ...
def finish() -> None: ...
def prepare() -> None: ...
