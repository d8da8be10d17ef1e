"""What a program wants called when a lease is lost."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from ._errors import ForkedError

if TYPE_CHECKING:
    from . import _lockmod
    from ._lockmod import Call, Lease

    Start = Callable[[_lockmod.Port], Call["str | None"]]
    Watch = Callable[[Start, Callable[["str | None"], None]], object]


class Callback:
    """A callback of a lease. Its guard has it, and so does its `lost`; nothing else does.

    What waits at a port is kept until it is told. If that were the callback, one that refers to the
    guard would keep the lock, and the garbage collector would not see the cycle.
    """

    _callback: Callable[[str], object] | None = None

    def __init__(self, lease: Lease, callback: Callable[[str], object]) -> None:
        self._lease, self._callback = lease, callback

    def tell(self, reason: str | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None and reason is not None and reason != "released":
            callback(reason)

    def __del__(self) -> None:
        # The guard went after the loss, and before that was told.
        if self._callback is not None:
            with suppress(ForkedError):
                loss = self._lease.loss()
                if loss is not None and loss.reason != "released":
                    _owed.add(self)


_owed: set[Callback] = set()
"""Those of leases that are lost and have no guard any more, until they have been called."""


def when_lost(
    callbacks: set[Callback], lease: Lease, callback: Callable[[str], object], watch: Watch
) -> None:
    """Calls it with the reason, unless the lease is released: for as long as it is among these."""
    one = Callback(lease, callback)
    known, among = weakref.ref(one), weakref.ref(callbacks)

    def tell(reason: str | None) -> None:
        one, callbacks = known(), among()
        if one is None:
            return
        if callbacks is not None:
            callbacks.discard(one)
        _owed.discard(one)
        one.tell(reason)

    callbacks.add(one)
    try:
        watch(lambda port: lease.lost(None, port), tell)
    except BaseException:
        # Nobody tells it, so nothing is owed.
        tell(None)
        raise
