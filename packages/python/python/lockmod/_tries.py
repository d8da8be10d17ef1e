"""How an acquisition of `compat` waits."""

from __future__ import annotations

import sys
import time

from ._errors import HeldError, LockError, LostError, NoQuorumError, TooLateError

# How long nodes may be silent before an acquisition that may wait gives them up.
_CONNECTING = 2.0
# The votes of nodes that answer, and that grant the lock if one waits.
_ABLE = ("granted", "held", "reserved", "not_held", "quarantined")


def is_gevent() -> bool:
    """Whether only a sleep lets others run: a waiter in line would stop the holder too."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("time"))


class Tries:
    """How long an acquisition waits: not at all at first, to learn whether the nodes answer.

    With a `pause` it never does, and is tried again after each.
    """

    def __init__(self, wait: float, pause: float | None) -> None:
        now = time.monotonic()
        self.wait, self._end, self._connected_by = 0.0, now + wait, now + _CONNECTING
        self._pause, self._has_lost = pause, False

    def go_on(self, error: LockError) -> bool:
        """Whether to try again after this error."""
        now = time.monotonic()
        if isinstance(error, LostError):
            return self._begin_again(now)
        if self.wait > 0 or now >= self._end:
            return False
        able = [vote for vote in error.nodes if vote.vote in _ABLE]
        if isinstance(error, (HeldError, TooLateError)) or len(able) > len(error.nodes) // 2:
            if self._pause is None:
                self.wait = self._end - now
            else:
                time.sleep(min(self._pause, self._end - now))
            return True
        # A node that is far away, or busy, may answer as soon as it is connected.
        is_slow = any(vote.vote == "timed_out" for vote in error.nodes)
        return isinstance(error, NoQuorumError) and is_slow and now < self._connected_by

    def _begin_again(self, now: float) -> bool:
        """After a lease that was lost at once. Once also when the wait is over, as redis-py."""
        had_lost, self._has_lost = self._has_lost, True
        if self._pause is None:
            self.wait = max(0.0, self._end - now)
        return now < self._end or not had_lost
