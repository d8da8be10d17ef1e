"""Distributed locks on Redis with fencing tokens, over a quorum of nodes.

>>> from lockmod import Locker
>>> locker = Locker(nodes, ttl=10, label="worker-7")
>>> with locker.lock("nightly-report") as guard:
...     print("working with fence", guard.fence)  # pass it to what the lock protects
working with fence 1

In a coroutine the same lock is `async with locker.lock(...)`, and `locker.aio` has everything else
as awaitables. A separate thread renews the leases and never needs the interpreter: neither a
computation that keeps the GIL nor a blocked event loop can cost a lock.

A lease can end while you work: after a partition, or when an operator removes the lock. An
`async with` block is cancelled then, and ends with `LostError`. A thread cannot be stopped from
outside, so in a `with` block call `guard.check()` before every step that matters.

All lengths of time are in seconds.
"""

from . import _subinterpreter as _subinterpreter  # the first: nothing may be loaded in one
from . import _once

_once.restore()  # before anything else: what follows is loaded once
from . import _ending as _ending  # registers what a process does at its end
from . import _lockmod
from ._errors import (
    ForkedError,
    HeldError,
    LockError,
    LostError,
    NodeVote,
    NoQuorumError,
    OptionError,
    RefusedError,
    TooLateError,
)
from ._guard import AsyncGuard, AsyncGuards, AsyncLost, Guard, Guards, Lost
from ._locker import AsyncLocker, Lock, Locker, NodeInfo
from ._options import Name

__version__ = _lockmod.__version__

# What it needs in Python cannot be imported at the end of a program.
_lockmod.prepare()
_once.remember()

__all__ = [
    "AsyncGuard",
    "AsyncGuards",
    "AsyncLocker",
    "AsyncLost",
    "ForkedError",
    "Guard",
    "Guards",
    "HeldError",
    "Lock",
    "LockError",
    "Locker",
    "Lost",
    "LostError",
    "Name",
    "NoQuorumError",
    "NodeInfo",
    "NodeVote",
    "OptionError",
    "RefusedError",
    "TooLateError",
]
