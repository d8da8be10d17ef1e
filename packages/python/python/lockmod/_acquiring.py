"""What an acquisition for coroutines returns: it says what is missing where it is not awaited."""

from __future__ import annotations

import asyncio.coroutines
import functools
import inspect
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Callable, Generator, NoReturn, TypeVar, cast


class Acquiring(Coroutine[Any, Any, Any]):
    """An acquisition that is to be awaited. Used like the guard, it says what is missing."""

    __slots__ = ("__weakref__", "_inside")

    def __init__(self, inside: Coroutine[Any, Any, Any]) -> None:
        self._inside = inside

    def __await__(self) -> Generator[Any, None, Any]:
        return self._inside.__await__()

    def send(self, value: Any) -> Any:
        return self._inside.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._inside.throw(*error)
        finally:
            # The error's traceback has this frame: together they would live until a collection.
            del error

    def close(self) -> None:
        self._inside.close()

    def __getattr__(self, name: str) -> Any:
        # What asyncio and debuggers ask of a coroutine.
        if name.startswith(("cr_", "__")):
            return getattr(self._inside, name)
        raise AttributeError(f"a coroutine has no '{name}', the guard has: write {_AWAIT}")

    def _refuse(self, *_: object) -> NoReturn:
        self.close()
        give = f"write async with {_AWAIT}, or locker.lock(...)"
        raise TypeError(f"a coroutine is not a block: {give}")

    # No method for type checkers, which know better.
    if not TYPE_CHECKING:
        __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse


_AWAIT = "await locker.aio.acquire(...)"
_Work = TypeVar("_Work", bound="Callable[..., Coroutine[Any, Any, Any]]")


def awaited(work: _Work) -> _Work:
    @functools.wraps(work)
    def acquiring(*args: Any, **options: Any) -> Acquiring:
        return Acquiring(work(*args, **options))

    # Mocks and frameworks ask whether it is one of `async def`.
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(acquiring)
    else:
        # asyncio's own mark, and what `asyncio.iscoroutinefunction` looks for.
        setattr(acquiring, "_is_coroutine", getattr(asyncio.coroutines, "_is_coroutine", None))
    return cast("_Work", acquiring)
