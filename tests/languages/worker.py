"""Does what a test says, line by line, with examples/python/lockmod.py: see main.rs."""

import os
import random
import sys
import threading
import time

sys.path.insert(0, os.environ["LOCKMOD_EXAMPLES"] + "/python")

import redis

from lockmod import Attempt, Lost, NodeLock, NotAcquired, QuorumLocker

urls = os.environ["LOCKMOD_NODES"].split(",")
label = os.environ["LOCKMOD_LABEL"]


def say(value):
    print(str(value).lower() if isinstance(value, bool) else value, flush=True)


def rounds(name, count, file):
    """Enters and leaves under the lock, and writes so into a file: the fence, and which of the two."""
    locker = QuorumLocker(urls, ttl=10, timeout=2, label=label)
    log = os.open(file, os.O_WRONLY | os.O_APPEND)
    for _ in range(int(count)):
        lease = locker.acquire(name, wait=60)
        os.write(log, f"enter {lease.fence} {label}\n".encode())
        lease.check()
        os.write(log, f"leave {lease.fence} {label}\n".encode())
        lease.release()
        # Time for the others, who are in a pause of theirs.
        time.sleep(random.uniform(0, 0.1))
    say("done")


def hold(locker, name):
    """Holds the lock until it is lost."""
    with locker.hold(name, wait=20) as lease:
        say(lease.fence)
        while True:
            try:
                lease.check()
            except Lost:
                return say("lost")
            threading.Event().wait(0.01)


def vote(count, node, reply):
    """Counts a vote; says what QuorumLocker would do then."""
    count(int(node), None if reply == "none" else int(reply))
    laggards = [node for node in attempt.laggards() if node not in raised]
    if attempt.is_won():
        say(f"won {attempt.fence}")
    elif attempt.is_lost():
        say("lost")
    elif laggards:
        raised.update(laggards)
        say(f"raise {attempt.fence} {sorted(laggards)}")
    else:
        say("wait")


lease = None
node = None
for line in sys.stdin:
    command, *arguments = line.split()
    if command == "rounds":
        rounds(*arguments)
    elif command == "locker":
        ttl = int(arguments[0]) / 1000
        # Patient, for machines that do other things as well.
        locker = QuorumLocker(urls, ttl=ttl, timeout=min(ttl / 4, 5), label=label)
        say("ready")
    elif command == "acquire":
        try:
            lease = locker.acquire(arguments[0], wait=int(arguments[1]) / 1000)
            say(lease.fence)
        except NotAcquired as error:
            say(error)
    elif command == "hold":
        hold(locker, arguments[0])
    elif command in ("renew", "release"):
        say(getattr(lease, command)())
    elif command == "close":
        locker.close()
        say("closed")
    elif command == "attempt":
        attempt, raised = Attempt(int(arguments[0])), set()
        say("ready")
    elif command in ("acquired", "raised"):
        vote(getattr(attempt, command), *arguments)
    elif command == "valid":
        say(lease.validity() > 0)
    elif command == "node":
        node = NodeLock(redis.Redis.from_url(urls[0], socket_timeout=60), arguments[0], 60, label)
        say(node.acquire())
    elif command == "node-acquire":
        say(node.acquire(*(int(wait) / 1000 for wait in arguments)))
    elif command == "node-renew":
        say(node.renew())
    elif command == "node-release":
        say(node.release())
    elif command == "node-valid":
        say(node.validity() > 0)
