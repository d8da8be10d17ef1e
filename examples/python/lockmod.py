"""Locks of lockmod from Python: on one node, or over a quorum of independent ones.

Copy this file into your project; it needs redis-py (`pip install redis`) and nothing else.

    with QuorumLocker(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]) as locker:
        with locker.hold("nightly", wait=10) as lease:
            while work_is_left():
                lease.check()                     # raises Lost when the lease is not ours any more
                write(..., fence=lease.fence)     # the resource refuses a smaller fence

What it does is docs/design.md, "The quorum protocol". All times are in seconds, as in Python;
they are sent in milliseconds. Everything may be called from any thread; after a fork, make a new
locker.
"""

import contextlib
import math
import queue
import random
import secrets
import threading
import time
from concurrent.futures import Future

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

TOKEN_BYTES = 20
# Who waits asks again after half of this to all of it: nodes keep a lock that has become free for
# the first in line for 100 ms (lockmod.reserve-ms).
PAUSE = 0.1
# Nodes publish there who comes first. Nobody listens: asking again soon is simpler.
CHANNEL = "lockmod:wake:nobody"
# For how long a place in line is kept for who does not ask again.
PLACE_MS = 2000
# Commands that may wait for one node that does not answer; beyond it, it counts as unreachable.
LINE_MAX = 1000


class NotAcquired(Exception):
    """The lock was not acquired; the text has what each node answered."""


class Lost(Exception):
    """The lease has ended, or was taken away: stop what it protected."""


def now():
    """A clock that nobody can set, and that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def drift(ttl):
    """What is taken off a ttl for clocks that run at different rates: 1 % and 2 ms."""
    return ttl / 100 + 0.002


def milliseconds(seconds):
    """Rounded up: the node's view of a lease is never shorter than ours."""
    return math.ceil(seconds * 1000)


def grant(name, token, ttl, label):
    """The command that asks for a lease."""
    command = ["LOCK.ACQUIRE", name, token, milliseconds(ttl)]
    return command + (["LABEL", label] if label else [])


# ---- one node ----


class NodeLock:
    """A lock on one node, by a client that you have: `NodeLock(redis.Redis(), "nightly", 30)`.

    Every method may raise what redis-py raises; after that it is unknown whether the lock is held:
    acquire again with the same object, which is harmless, or release.
    """

    def __init__(self, client, name, ttl=30.0, label=None):
        self.client, self.name, self.ttl, self.label = client, name, ttl, label
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.ends_at = -math.inf

    def acquire(self, wait=0.0):
        """The fence, or None while another holds the lock; waits in line for it at the node.

        The connection is blocked meanwhile: the client's socket_timeout must be longer than `wait`.
        """
        command = grant(self.name, self.token, self.ttl, self.label)
        if wait and self.client.execute_command(*command, "WAIT", milliseconds(wait)) is None:
            return None
        # A lease that was waited for began at a time that we do not know, so we ask again, which is
        # harmless: the lease never becomes shorter.
        started_at = now()
        fence = self.client.execute_command(*command)
        if fence is None:
            return None
        self.ends_at = started_at + self.ttl - drift(self.ttl)
        if self.validity() == 0:
            self.release()  # the answer took too long to be of use
            return None
        return fence

    def renew(self):
        """Lets the lease end ttl from now. False: it is lost, and is never ours again."""
        started_at = now()
        if self.validity() == 0:
            return False
        command = ["LOCK.EXTEND", self.name, self.token, milliseconds(self.ttl)]
        if self.client.execute_command(*command) != 1 or self.validity() == 0:
            self.ends_at = -math.inf
            return False
        self.ends_at = started_at + self.ttl - drift(self.ttl)
        return True

    def release(self):
        """True: it was held until now. False: it had ended before, so others may have been here."""
        self.ends_at = -math.inf
        released = self.client.execute_command("LOCK.RELEASE", self.name, self.token) == 1
        # Another acquisition is another claim.
        self.token = secrets.token_bytes(TOKEN_BYTES)
        return released

    def validity(self):
        """For how long the lease may still be relied on."""
        return max(0.0, self.ends_at - now())


# ---- a quorum of nodes ----


class Node:
    """One node: one connection, and one thread that sends one command after the other.

    A release therefore never overtakes the acquire that it takes back, and who waits for an answer
    waits for as long as it likes, without touching the connection.
    """

    def __init__(self, url, timeout, patience):
        self.client = redis.Redis.from_url(
            url,
            # One thread uses one connection. It is given up only when an answer would come too
            # late for anything.
            socket_timeout=patience,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
        self.line = queue.Queue(LINE_MAX)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def send(self, *command):
        """A future of the reply; cancelling it takes back a command that has not been sent."""
        reply = Future()
        try:
            self.line.put_nowait((reply, command))
        except queue.Full:
            reply.set_exception(redis.ConnectionError("too many commands wait for this node"))
        return reply

    def close(self):
        """Ends the thread, when all that was sent before is done."""
        with contextlib.suppress(queue.Full):
            self.line.put_nowait((None, None))

    def _run(self):
        while (entry := self.line.get())[0] is not None:
            reply, command = entry
            if not reply.set_running_or_notify_cancel():
                continue
            try:
                reply.set_result(self.client.execute_command(*command))
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
                reply.set_exception(error)
        self.client.close()


class Attempt:
    """Counts the votes on one acquisition. It knows no sockets and no clock."""

    def __init__(self, nodes):
        self.nodes, self.quorum = nodes, nodes // 2 + 1
        self.fences = {}  # by node: the fence that it stores for this token
        self.out = set()  # nodes that refused, did not answer, or cannot store our fence
        self.fence = 0
        self.is_fixed = False  # a quorum has granted: the fence is the largest of theirs

    def acquired(self, node, reply):
        """A node's answer to LOCK.ACQUIRE; anything but a number is no grant."""
        if not isinstance(reply, int):
            self.out.add(node)
        elif self.is_fixed and reply > self.fence:
            # It may have granted our fence to another before, so it cannot vouch for it.
            self.out.add(node)
        else:
            self.fences[node] = reply
            if not self.is_fixed:
                self.fence = max(self.fence, reply)
                self.is_fixed = len(self.fences) >= self.quorum
        return self

    def raised(self, node, reply):
        """A node's answer to LOCK.FENCE: it counts if it is exactly our fence."""
        if reply == self.fence:
            self.fences[node] = reply
        else:
            self.out.add(node)
        return self

    def laggards(self):
        """Who granted a smaller fence than ours, once a quorum has granted."""
        lag = [node for node, fence in self.fences.items() if fence < self.fence]
        return lag if self.is_fixed else []

    def is_won(self):
        stored = [n for n, f in self.fences.items() if f == self.fence and n not in self.out]
        return self.is_fixed and len(stored) >= self.quorum

    def is_lost(self):
        return self.nodes - len(self.out) < self.quorum


class QuorumLocker:
    """Locks over several independent nodes: whoever holds the lease at a quorum holds the lock.

    timeout is how long one node's answer is waited for: small beside the ttl.
    """

    def __init__(self, urls, ttl=30.0, timeout=None, label=None):
        self.ttl, self.label = ttl, label
        self.timeout = timeout or min(max(ttl / 20, 0.05), 0.5, ttl / 4)
        self.nodes = [Node(url, self.timeout, patience=ttl) for url in urls]
        self.quorum = len(self.nodes) // 2 + 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Waits until releases are written, but not for a node that hangs."""
        for node in self.nodes:
            node.close()
        deadline = now() + self.timeout
        for node in self.nodes:
            node.thread.join(max(0, deadline - now()))

    def acquire(self, name, wait=0.0):
        """A Lease; stands in line while another holds the lock, and asks again and again.

        Raises NotAcquired when `wait` is over.
        """
        deadline = now() + wait
        # The same place in line through all attempts, and at all nodes: who came first is first.
        ticket = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(8)}"
        while True:
            left = deadline - now()
            # The last attempt leaves the line.
            place = ["QUEUE", PLACE_MS if left > 0 else 0, "TICKET", ticket, "NOTIFY", CHANNEL]
            try:
                return self._attempt(name, place if wait else [])
            except NotAcquired:
                if left <= 0:
                    raise
                # Random, because those who lost to each other must not meet again.
                time.sleep(max(0, min(random.uniform(PAUSE / 2, PAUSE), deadline - now())))

    @contextlib.contextmanager
    def hold(self, name, wait=0.0):
        """Acquires, renews at a third of the ttl in the background, and releases at the end."""
        lease = self.acquire(name, wait)
        done = threading.Event()

        def renew():
            pause = self.ttl / 3
            while not done.wait(min(pause, lease.validity())) and lease.validity() > 0:
                # One that failed takes nothing away: it is tried again soon.
                pause = self.ttl / 3 if lease.renew() else self.ttl / 12

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield lease
        finally:
            done.set()
            renewing.join()
            lease.release()

    def _attempt(self, name, place):
        token = secrets.token_bytes(TOKEN_BYTES)
        attempt, votes, answers = Attempt(len(self.nodes)), {}, queue.SimpleQueue()
        started_at = now()

        def validity():
            return self.ttl - (now() - started_at) - drift(self.ttl)

        def ask(node, count, *command):
            reply = self.nodes[node].send(*command)
            reply.add_done_callback(lambda reply: answers.put((node, count, outcome(reply))))
            return reply

        acquire = grant(name, token, self.ttl, self.label) + place
        sent = [ask(n, attempt.acquired, *acquire) for n in range(len(self.nodes))]
        raised = set()
        deadline = started_at + self.timeout
        while not attempt.is_won() and not attempt.is_lost() and validity() > 0:
            try:
                node, count, reply = answers.get(timeout=max(0, deadline - now()))
            except queue.Empty:
                break  # who has not answered by now has no vote
            votes[node] = reply
            count(node, reply)
            laggards = [node for node in attempt.laggards() if node not in raised]
            if laggards and not attempt.is_won():
                if not raised:
                    deadline = now() + self.timeout
                raised.update(laggards)
                for node in laggards:
                    ask(node, attempt.raised, "LOCK.FENCE", name, token, attempt.fence)
        # What has not left by now is withdrawn.
        asked = [node for node, acquire in zip(self.nodes, sent) if not acquire.cancel()]
        # Both are asked after the raise: it took time.
        if not attempt.is_won() or validity() <= 0:
            # Taken back wherever it went, also where it was not answered, on the same connection.
            for node in asked:
                node.send("LOCK.RELEASE", name, token, *place)
            said = [f"{n + 1}: {votes.get(n, 'no answer')}" for n in range(len(self.nodes))]
            raise NotAcquired(f"lock '{name}': " + ", ".join(said))
        for node in set(attempt.laggards()) - raised:
            # So that the next acquisition needs one round trip.
            self.nodes[node].send("LOCK.FENCE", name, token, attempt.fence)
        return Lease(self, name, token, attempt.fence, started_at + self.ttl - drift(self.ttl))

    def count(self, expected, *command):
        """Sends to all nodes. True, the replies: a quorum answered `expected`."""
        answers, replies = queue.SimpleQueue(), {}
        sent = [node.send(*command) for node in self.nodes]
        for n, reply in enumerate(sent):
            reply.add_done_callback(lambda reply, n=n: answers.put((n, outcome(reply))))
        deadline = now() + self.timeout
        while len(replies) < len(self.nodes):
            try:
                node, reply = answers.get(timeout=max(0, deadline - now()))
            except queue.Empty:
                break
            replies[node] = reply
            yes = list(replies.values()).count(expected)
            if yes >= self.quorum:
                return True, replies
            if len(replies) - yes > len(self.nodes) - self.quorum:
                break
        return False, replies


class Lease:
    """A lock that is held. Its fence rises with every grant: give it to what the lock protects."""

    def __init__(self, locker, name, token, fence, ends_at):
        self.locker, self.name, self.token, self.fence = locker, name, token, fence
        self._ends_at = ends_at
        self._one_at_a_time = threading.Lock()

    def validity(self):
        """For how long the lease may still be relied on; 0 from its end on."""
        return max(0.0, self._ends_at - now())

    def check(self):
        """Raises Lost when the lease may not be relied on any more."""
        if self.validity() == 0:
            raise Lost(f"lock '{self.name}' with fence {self.fence}")

    def renew(self):
        """Extends on all nodes. False: not now; what was valid stays valid until it ends."""
        ttl = milliseconds(self.locker.ttl)
        with self._one_at_a_time:
            started_at = now()
            # Whose validity has ended is done: another may hold the lock by now.
            if self.validity() == 0:
                return False
            extend = ["LOCK.EXTEND", self.name, self.token, ttl]
            is_extended, replies = self.locker.count(1, *extend)
            if self.validity() == 0:
                return False
            if is_extended:
                end = started_at + self.locker.ttl - drift(self.locker.ttl)
                self._ends_at = max(self._ends_at, end)
                self._repair(replies, extend)
            elif sum(reply in (0, None) for reply in replies.values()) >= self.locker.quorum:
                self._ends_at = -math.inf  # removed by force: a quorum knows nothing of us
            return is_extended

    def _repair(self, replies, extend):
        """Gives the lease back to nodes that forgot it, while a quorum confirms it."""
        for node, reply in replies.items():
            if reply is None or "QUARANTINE" in str(reply):
                self.locker.nodes[node].send(*extend, "FENCE", self.fence, "REPAIR")

    def release(self):
        """Gives the lease back on all nodes. False: no quorum confirmed that it was held."""
        with self._one_at_a_time:
            self._ends_at = -math.inf
            return self.locker.count(1, "LOCK.RELEASE", self.name, self.token)[0]


def outcome(reply):
    """What became of a command: its reply, or the exception as a value."""
    if reply.cancelled():
        return redis.ConnectionError("not sent")
    return reply.exception() or reply.result()
