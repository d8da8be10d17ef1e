"""Gives each later import the modules of the first.

A program imports the package again if it has removed it from `sys.modules`, as `patch.dict` does.
The native part is once in a process, and raises the errors of the first import: an `except` with
the classes of a second one would not catch them.
"""

from __future__ import annotations

import sys

from . import _lockmod


def restore() -> None:
    """Does nothing in the first import."""
    sys.modules.update(_lockmod.modules())


def remember() -> None:
    """Remembers the modules of this package, once they are complete."""
    package, modules = __name__.rpartition(".")[0], _lockmod.modules()
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            modules[name] = module
