"""Refuses to be imported in a subinterpreter.

The native part is once in a process, and so is what a process does at its end. So the end of a
subinterpreter would release the locks of all others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _is_main() -> bool:
    # It has had both names; without it there are no subinterpreters that Python code began.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters: Any = import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _is_main():
    raise ImportError("lockmod cannot be used in a subinterpreter: import it in the main one")
