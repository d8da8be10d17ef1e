"""Does what a test says, line by line, with the Python package: see main.rs."""

import os
import random
import sys
import time

from lockmod import Locker, LockError, LostError, NoQuorumError

urls = os.environ["LOCKMOD_NODES"].split(",")
label = os.environ["LOCKMOD_LABEL"]


def say(value):
    print(str(value).lower() if isinstance(value, bool) else value, flush=True)


def done(call):
    """Whether a quorum did it."""
    try:
        call()
    except (LostError, NoQuorumError):
        return False
    return True


def rounds(name, count, file, kinds=""):
    """Enters and leaves under the lock, and writes so into a file: the fence, and which of both."""
    locker = Locker(urls, ttl=10, timeout=2, label=label)
    log = os.open(file, os.O_WRONLY | os.O_APPEND)
    for number in range(int(count)):
        shared = kinds == "mixed" and number % 3 > 0
        guard = locker.acquire(name, wait=60, shared=shared)
        who = f"{guard.fence} {label}{' reads' if shared else ''}\n"
        os.write(log, f"enter {who}".encode())
        guard.check()
        os.write(log, f"leave {who}".encode())
        # While two nodes are down, one that is slow makes it unknown whether a quorum heard.
        done(guard.release)
        # Time for the others, who are in a pause of theirs.
        time.sleep(random.uniform(0, 0.1))
    say("done")


guard = locker = None
for line in sys.stdin:
    command, *arguments = line.split()
    if command == "rounds":
        rounds(*arguments)
    elif command == "locker":
        ttl = int(arguments[0]) / 1000
        # Patient, for machines that do other things as well.
        locker = Locker(urls, ttl=ttl, timeout=min(ttl / 4, 5), label=label)
        say("ready")
    elif command in ("acquire", "acquire-shared"):
        name, wait = arguments[0], int(arguments[1]) / 1000
        try:
            shared = command == "acquire-shared"
            guard = locker.acquire(name, wait=wait, renew=False, shared=shared)
            say(guard.fence)
        except LockError as error:
            say(error)
    elif command == "hold":
        guard = locker.acquire(arguments[0], wait=20)
        say(guard.fence)
        guard.lost.wait()
        say("lost")
    elif command == "renew":
        say(done(guard.extend))
    elif command == "downgrade":
        say(done(guard.downgrade))
    elif command == "release":
        say(done(guard.release))
    elif command == "close":
        locker.settle()
        say("closed")
    elif command == "valid":
        say(guard.validity > 0)
