"""Errors about wrong calls name what users know: their class, its arguments, where to get one."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, Callable, ClassVar, NoReturn, TypeVar, cast

_Init = TypeVar("_Init", bound="Callable[..., None]")


def adopt(cls: type) -> None:
    """Gives the class copies of the methods that it inherits from classes that no user knows.

    The errors of Python about a wrong call name the class that a method was written in.
    """
    for base in cls.__mro__[1:]:
        if not (base.__name__.startswith("_") and base.__module__.startswith("lockmod.")):
            continue
        for name, method in vars(base).items():
            if isinstance(method, FunctionType) and getattr(cls, name) is method:
                setattr(cls, name, _copy(method, f"{cls.__qualname__}.{name}"))


def _copy(method: FunctionType, qualname: str) -> FunctionType:
    code, name = method.__code__, method.__name__
    copy = FunctionType(code, method.__globals__, name, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    copy.__annotations__ = method.__annotations__
    copy.__doc__, copy.__module__ = method.__doc__, method.__module__
    copy.__dict__.update(method.__dict__)
    copy.__qualname__ = qualname
    return copy


def explained(init: _Init) -> _Init:
    """Has the errors about a wrong call name the arguments that there are."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def called(self: object, *given: Any, **options: Any) -> None:
        try:
            init(self, *given, **options)
        except TypeError:
            try:
                signature.bind(self, *given, **options)
            except TypeError as wrong:
                names = ", ".join([*signature.parameters][1:])
                # Not a subclass that a program has, whose own arguments may be others.
                own = (one for one in type(self).__mro__ if one.__module__ == init.__module__)
                raise TypeError(f"{next(own).__name__}(): {wrong}: there are {names}") from None
            raise

    return cast("_Init", called)


class Single:
    """The base of classes whose objects have a native part.

    A copy would have the same one, so its `close()` or `release()` would be that of the original.
    """

    __slots__ = ()

    _single: ClassVar[str] = "it is one lock, held in this process"
    """Why there is no second one."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: {self._single}")


def unmade(one: object) -> RuntimeError:
    """The error of an object whose `__init__` has not run."""
    kind = type(one)
    is_own = kind.__init__.__module__.startswith("lockmod.")
    what = "has not been called" if is_own else "has not called super().__init__()"
    return RuntimeError(f"{kind.__name__}.__init__() {what}")


class Made(Single):
    """The base of classes whose objects a program gets, and does not make."""

    __slots__ = ()

    _part: ClassVar[type]
    """The class of the last argument, or of the elements of a list."""
    _source: ClassVar[str]
    """Where a program gets one."""
    _new: ClassVar[Callable[..., Any]] = object.__new__
    """The `__new__` of the class that decides on the layout of its objects."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        adopt(cls)

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise TypeError(f"{cls.__name__} is not made by calling its class: {cls._source}")

    # Type checkers know what each class is made of.
    if not TYPE_CHECKING:

        def __new__(cls, *parts: Any, **options: Any) -> Any:
            """Raises `TypeError` for what a program calls it with."""
            if options or not parts or not isinstance(parts[-1], cls._part):
                cls._refuse()
            return cls._new(cls)


class MadeOfMany(Made):
    """The same for a tuple, which is made of a list."""

    __slots__ = ()

    # Type checkers know tuples better.
    if not TYPE_CHECKING:

        def __new__(cls, *parts: Any, **options: Any) -> Any:
            """Raises `TypeError` for what it cannot be made of."""
            if options or len(parts) != 1 or not isinstance(parts[0], list):
                cls._refuse()
            if not all(isinstance(one, cls._part) for one in parts[0]):
                cls._refuse()
            return tuple.__new__(cls, parts[0])
