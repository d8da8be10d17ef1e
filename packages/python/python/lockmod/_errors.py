"""The errors: one class for each cause, whichever operation raises it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional, TypeVar


def given(told: Any) -> str:
    """A NamedTuple in short: without the fields that say nothing."""
    fields = zip(told._fields, told)
    said = [f"{name}={value!r}" for name, value in fields if value is not None and value != ()]
    return f"{type(told).__name__}({', '.join(said)})"


_Told = TypeVar("_Told", bound="type[NamedTuple]")
_FIELD = re.compile(r"^ *- `(\w+)`: (.*?)(?=^ *- `|\Z)", re.MULTILINE | re.DOTALL)


def described(kind: _Told) -> _Told:
    """Gives each field its text in the list of the class, for `help()`."""
    for name, text in _FIELD.findall(kind.__doc__ or ""):
        getattr(kind, name).__doc__ = " ".join(text.split())
    return kind


@described
class NodeVote(NamedTuple):
    """One node's vote. Lengths of time are in seconds.

    - `node`: the node's address, without password.
    - `vote`: in one word: `granted`, `held`, `timed_out`, `unreachable` and so on.
    - `text`: for people to read.
    - `fence`: the fence that it granted.
    - `label`: the label of the holder there.
    - `left`: how long that lease lasts unless it is extended.
    - `held_for`: how long that holder has had the lock.
    - `master`: the master that was asked last, if the node is a Cluster or a group under Sentinel,
      and it is known.
    """

    node: str
    vote: str
    text: str
    fence: Optional[int] = None
    label: Optional[str] = None
    left: Optional[float] = None
    held_for: Optional[float] = None
    master: Optional[str] = None

    def __repr__(self) -> str:
        return given(self)


class LockError(Exception):
    """The base class of all errors of this package.

    `str(error)` is one line for an operator: who holds the lock and for how long, and which nodes
    have which problem.
    """

    is_retryable = False
    """Whether the same call may succeed later without a manual repair. Not that of a release: what
    too few nodes have confirmed is released anyway, or runs out."""

    nodes: tuple[NodeVote, ...] = ()
    """Each node's vote, in the order of the nodes; empty if none was asked."""
    waited: float | None = None
    """For an acquisition, how long it tried, in seconds. The nodes are asked afterwards who holds
    the lock, for at most `timeout`."""
    attempts: int | None = None
    """For an acquisition, how many attempts it made."""


class HeldError(LockError):
    """Another holds the lock, or several compete for it, or the nodes keep it for the first in
    line; and the wait is over."""

    is_retryable = True

    @property
    def label(self) -> str | None:
        """The label of the holder, as most nodes report it; None if it has none, or nobody holds
        the lock."""
        labels = [vote.label for vote in self.nodes if vote.label is not None]
        return max(labels, key=labels.count, default=None)

    @property
    def left(self) -> float | None:
        """How long its lease lasts unless it is extended, in seconds."""
        return max((vote.left for vote in self.nodes if vote.left is not None), default=None)

    @property
    def held_for(self) -> float | None:
        """How long it has had the lock, in seconds."""
        held_for = (vote.held_for for vote in self.nodes if vote.held_for is not None)
        return max(held_for, default=None)


class NoQuorumError(LockError):
    """Too few nodes answered: `nodes` has each node's vote.

    A failed extension takes nothing away: the lease stays valid until its end. After a failed
    release there is nothing left to do: the lease is over for its holder.
    """

    is_retryable = True


class RefusedError(LockError):
    """A retry does not help: too many nodes have no module, give no permission, have something else
    under the name, or refuse a ttl above their limit; or the locker is closed, or the program ends.

    As with `NoQuorumError`, a failed extension takes nothing away.
    """


class TooLateError(LockError):
    """The nodes answered so slowly that the validity was used up. A longer ttl helps."""

    is_retryable = True


class LostError(LockError):
    """The lease has ended: stop what it protected.

    If it expired, the text names the ttl that it had. If that was because too few nodes confirmed
    an extension, `nodes` has their votes on the last one; if it was removed, the votes that showed
    this.
    """

    reason: str = "expired"
    """`expired`, `removed` by force, `max_hold` reached, or `released`."""


class OptionError(LockError, ValueError):
    """A setting or an argument is wrong; nothing was sent. The text says what to do."""


class ForkedError(LockError):
    """The guard belongs to the process that this one was forked from.

    A `Locker` may be used after a fork; only the parent holds what was held before.
    """


_CLASSES: dict[str, type[LockError]] = {
    "held": HeldError,
    "no_quorum": NoQuorumError,
    "refused": RefusedError,
    "too_late": TooLateError,
    "lost": LostError,
    "option": OptionError,
    "forked": ForkedError,
}

for _class in (LockError, *_CLASSES.values()):
    _class.__module__ = "lockmod"


def build(
    kind: str,
    text: str,
    nodes: tuple[NodeVote, ...],
    tried: tuple[float, int] | None,
    reason: str | None,
    is_retryable: bool,
) -> LockError:
    """Makes the error that the native part describes."""
    error = _CLASSES[kind](text)
    error.nodes = nodes
    error.is_retryable = is_retryable
    if tried is not None:
        error.waited, error.attempts = tried
    if isinstance(error, LostError) and reason is not None:
        error.reason = reason
    return error
