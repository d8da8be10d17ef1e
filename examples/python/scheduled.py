"""A job that every host starts at the same time, but only one of them runs.

In the crontab of every host:

    0 3 * * *  LOCKMOD_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 python scheduled.py

The host that gets the lock keeps it for at least a minute, which is longer than the hosts' clocks
differ and than they wait for the lock. Otherwise a late host would find it free again and do the
job once more.
"""

import os
import socket
import sys
import time

from lockmod import HeldError, Locker

locker = Locker(os.environ["LOCKMOD_NODES"], ttl=30, label=socket.gethostname())


def report(fence: int) -> None:
    """Your job."""
    print(f"the nightly report, under fence {fence}", flush=True)


def main(keep: float) -> None:
    try:
        # The wait is for hosts that start in the same instant.
        with locker.lock("nightly-report", wait=5) as guard:
            start = time.monotonic()
            report(guard.fence)
            # Waits until the time is over or the lease is lost.
            guard.lost.wait(max(0.0, start + keep - time.monotonic()))
    except HeldError as error:
        print(f"left to {error.label or 'another host'}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
