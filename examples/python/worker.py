"""A worker that handles each task of a list under its own lock, and stops when that is lost.

    LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 python worker.py a b c

Start it twice: the two never handle the same task at the same time.
"""

import os
import sys
import time

from lockmod import Guard, HeldError, Locker, LostError

locker = Locker(os.environ["LOCKMOD_NODES"], ttl=10, label=f"worker-{os.getpid()}")


def handle(task: str, guard: Guard) -> None:
    """Your work, step by step."""
    for step in range(3):
        guard.check()  # raises LostError: the next step is another worker's
        print(f"{task}: step {step} under fence {guard.fence}", flush=True)
        time.sleep(0.01)


def main(tasks: list[str]) -> None:
    for task in tasks:
        try:
            with locker.lock(f"task:{task}", wait=0) as guard:
                handle(task, guard)
        except HeldError as error:
            print(f"{task}: left to {error.label or 'another'}")
        except LostError as error:
            print(f"{task}: given up: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
