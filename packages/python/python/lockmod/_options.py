"""Checks arguments before anything is sent: what is wrong, with its value, and what is allowed."""

from __future__ import annotations

import inspect
import math
import os
import reprlib
from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple, SupportsFloat, Union, cast

from . import _lockmod
from ._errors import OptionError

if TYPE_CHECKING:
    from typing import NoReturn

Name = Union[str, bytes, bytearray, memoryview]
"""A lock's name: text, or bytes; 1 to 65536 bytes in UTF-8."""
_NAMES = (str, bytes, bytearray, memoryview)

Length = Union[float, str]
"""A length of time for the native part: in seconds, or in a text what was given instead."""


_ENCODABLE = "a text that UTF-8 can encode"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(text: str) -> str:
    """One line: a class may show its values in several, or in broken text."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if text.isprintable() else "".join(escaped)


def _shown(value: object) -> str:
    """A value in short."""
    try:
        return _printable(reprlib.repr(value))
    except ValueError:
        # Python does not write an int of so many digits.
        return f"a large {type(value).__name__}"


def _refuse(what: str, value: object, give: str) -> NoReturn:
    raise OptionError(f"{what} is {_shown(value)}: give {give}")


def _typed(value: object) -> str:
    """A value of a wrong type in short, with that type."""
    return "None" if value is None else f"{_shown(value)}, of type {type(value).__name__}"


def _refuse_type(what: str, value: object, give: str) -> NoReturn:
    raise OptionError(f"{what} is {_typed(value)}: give {give}")


def name_bytes(name: Name) -> bytes:
    """The bytes of a lock's name."""
    if not isinstance(cast("object", name), _NAMES):
        # bytes() would take a number for a length.
        _refuse_type("the name", name, "a str or bytes")
    try:
        found = name.encode() if isinstance(name, str) else bytes(name)
    except UnicodeEncodeError:
        _refuse("the name", name, "a text that UTF-8 can encode, or bytes")
    if not found:
        raise OptionError("the name is empty: is a variable not set?")
    return found


def all_bytes(what: str, names: Iterable[Name]) -> list[bytes]:
    """The bytes of several names."""
    # The letters of one name would count as names.
    if isinstance(names, _NAMES) or not isinstance(cast("object", names), Iterable):
        raise OptionError(f"{what} {_typed(names)}: give a list of names")
    return [name_bytes(name) for name in names]


def seconds(value: SupportsFloat | None, *, endless: bool = False) -> Length | None:
    """A length of time. Infinity is one if it may be endless.

    The native part checks its bounds, and refuses what is no number, because it knows the range.
    """
    if value is None or type(value) is float:
        return value
    given = cast("object", value)
    is_number = hasattr(type(given), "__float__") or hasattr(type(given), "__index__")
    # True is an int, and more likely a mistake than a second.
    if isinstance(given, bool) or not is_number:
        return _typed(given)
    try:
        return float(value)
    except OverflowError:
        # What Python reads 1e400 as.
        return math.inf if cast("float", value) > 0 and endless else _shown(given)
    except (TypeError, ValueError):
        return _typed(given)


def number(
    what: str, value: SupportsFloat | None, allowed: str, *, endless: bool = False
) -> float | None:
    """A length of time that is not for the native part."""
    length = seconds(value, endless=endless)
    if isinstance(length, str):
        raise OptionError(f"{what} is {length}: give a number of seconds, {allowed}")
    return length


def flag(what: str, value: bool | None, default: bool) -> bool:
    """True or False. None stands for the default, as in all options."""
    if value is None:
        return default
    if value is not True and value is not False:
        _refuse_type(what, value, "True or False")
    return value


def checked_label(value: str) -> str:
    """A name for the caller; the native part checks its length."""
    if not isinstance(cast("object", value), str):
        _refuse_type("label", value, "a str of up to 128 bytes")
    return _encodable("label", value)


def _encodable(what: str, value: str) -> str:
    if not _is_encodable(value):
        _refuse(what, value, _ENCODABLE)
    return value


def file(what: str, value: str | os.PathLike[str] | None) -> str | None:
    """The path of a file."""
    if value is None:
        return None
    try:
        path = cast("object", os.fspath(value))
    except TypeError:
        path = None
    if not isinstance(path, str):
        _refuse_type(what, value, "a path, as a str or an os.PathLike of str")
    return _encodable(what, path)


def _kind(value: object) -> str:
    """What is shown of a value that may have a password in it."""
    return repr(value) if value is None or type(value) in (bool, int, float) else repr(type(value))


def urls(nodes: str | Iterable[str]) -> list[str]:
    """The URLs of nodes; a single text has them separated by commas."""
    if isinstance(nodes, str):
        if not _is_encodable(nodes):
            raise OptionError(f"the list of nodes is broken text: give {_ENCODABLE}")
        nodes = _lockmod.split_nodes(nodes)
    if isinstance(nodes, _NAMES) or not isinstance(cast("object", nodes), Iterable):
        raise OptionError(f"the nodes are {_kind(nodes)}: give a list of URLs")
    found = list(nodes)
    for number, url in enumerate(found, 1):
        if not isinstance(cast("object", url), str):
            raise OptionError(f"node {number} is {_kind(url)}: give its URL, as a str")
        if not _is_encodable(url):
            raise OptionError(f"node {number} is broken text: give {_ENCODABLE}")
    return found


def function(callback: Callable[[str], object]) -> Callable[[str], object]:
    """A function to be called with the reason of a loss."""
    if not callable(cast("object", callback)):
        _refuse_type("the callback", callback, "a function of one argument, the reason")
    # An object may be called as one.
    if any(map(inspect.iscoroutinefunction, (callback, getattr(callback, "__call__", None)))):
        _refuse("the callback", callback, "a function that is no coroutine: nobody would await it")
    return callback


class Terms(NamedTuple):
    """The options of every acquisition, in the order in which the native part takes them."""

    wait: Length | None
    ttl: Length | None
    label: str | None
    renew: bool | None
    max_hold: Length | None


class Options(NamedTuple):
    """The same with those of one lock."""

    wait: Length | None
    ttl: Length | None
    label: str | None
    renew: bool | None
    max_hold: Length | None
    shared: bool

    def given(self) -> dict[str, Any]:
        """Those that are not the default, by their names."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        if not self.shared:
            del given["shared"]
        return given


def terms(
    wait: SupportsFloat | None,
    ttl: SupportsFloat | None,
    label: str | None,
    renew: bool | None,
    max_hold: SupportsFloat | None,
) -> Terms:
    """Checks the options of every acquisition. None stands for the locker's."""
    return Terms(
        seconds(wait, endless=True),
        seconds(ttl),
        None if label is None else checked_label(label),
        None if renew is None else flag("renew", renew, True),
        seconds(max_hold, endless=True),
    )


def options(
    wait: SupportsFloat | None,
    ttl: SupportsFloat | None,
    label: str | None,
    renew: bool | None,
    max_hold: SupportsFloat | None,
    shared: bool | None,
) -> Options:
    """Checks the options of an acquisition of one lock."""
    # Most calls give none.
    has_length = wait is not None or ttl is not None or max_hold is not None
    if not has_length and label is None and renew is None and shared is None:
        return _DEFAULTS
    return Options(*terms(wait, ttl, label, renew, max_hold), flag("shared", shared, False))


_DEFAULTS = Options(None, None, None, None, None, False)
