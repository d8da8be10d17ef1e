"""Locks from threads."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, Callable, Iterator

import pytest
from conftest import PATIENCE, Node, until

import lockmod
from lockmod import Locker


def test_one_holds_it_at_a_time_and_fences_rise(locker: Locker, nodes: list[str], name: str) -> None:
    other = Locker(nodes, ttl=10, timeout=2)
    with locker.lock(name, label="worker-7") as guard:
        first = guard.fence
        assert guard.name == name.encode()
        assert 0 < guard.validity <= 10
        assert not guard.lost and not guard.lost.is_set()
        # The quorum has it; after this, the last node has it too.
        locker.settle()
        with pytest.raises(lockmod.HeldError) as held:
            other.try_acquire(name)
    assert guard.validity == 0
    assert guard.lost.is_set() and guard.lost.wait() == "released"
    error = held.value
    assert (error.label, error.is_retryable, error.attempts) == ("worker-7", True, 1)
    assert error.left is not None and 0 < error.left <= 10
    assert "for worker-7" in str(error)
    assert [vote.node for vote in error.nodes] == [url.split("//")[1] for url in nodes]
    assert {vote.vote for vote in error.nodes} == {"held"}
    with other.try_acquire(name) as guard:
        assert guard.fence > first


def test_whoever_waits_is_woken(locker: Locker, servers: list[Node], name: str) -> None:
    guard = locker.acquire(name)
    fences: list[int] = []

    def wait() -> None:
        with locker.lock(name, wait=PATIENCE) as late:
            fences.append(late.fence)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until("it stands in line", lambda: servers[0].info(name)["waiters"] == 1)
    guard.release()
    waiting.join(PATIENCE)
    assert fences == [guard.fence + 1]


def test_threads_exclude_each_other(locker: Locker, name: str) -> None:
    inside: list[int] = []
    log: list[int] = []

    def work() -> None:
        for _ in range(5):
            with locker.lock(name) as guard:
                inside.append(1)
                assert len(inside) == 1
                log.append(guard.fence)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(log) == 40
    assert log == sorted(set(log))


def test_a_block_whose_lease_was_taken_away_ends_with_an_error(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.5, timeout=0.4)
    with pytest.raises(lockmod.LostError) as lost:  # noqa: SIM117
        with locker.lock(name) as guard:
            for node in servers:
                node.run("DEL", name)
            assert guard.lost.wait(PATIENCE) == "removed"
            with pytest.raises(lockmod.LostError):
                guard.check()
    assert lost.value.reason == "removed"

    # Also if the block ends before a renewal has noticed.
    with pytest.raises(lockmod.LostError):  # noqa: SIM117
        with locker.lock(name):
            for node in servers:
                node.run("DEL", name)

    # An error of the work itself is not replaced.
    with pytest.raises(ZeroDivisionError):  # noqa: SIM117
        with locker.lock(name):
            for node in servers:
                node.run("DEL", name)
            raise ZeroDivisionError


def test_a_block_that_ends_with_the_loss_ends_with_one_error(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=10, timeout=2)

    def lose(guard: lockmod.Guard | lockmod.AsyncGuard) -> None:
        locker.settle()
        for node in servers:
            node.run("DEL", guard.name.decode())

    def one(name: str, call: Callable[[lockmod.Guard], object]) -> None:
        with locker.lock(name) as guard:
            lose(guard)
            call(guard)

    def several(name: str, call: Callable[[lockmod.Guard], object]) -> None:
        with locker.acquire_many([name, f"{name}:2"]) as guards:
            lose(guards[0])
            call(guards[0])

    def coroutine(name: str, call: Callable[[Any], Any]) -> None:
        async def work() -> None:
            async with locker.lock(name) as guard:
                lose(guard)
                await call(guard)

        asyncio.run(work())

    for block in (one, several, coroutine):
        for method in ("extend", "downgrade", "release"):
            with pytest.raises(lockmod.LostError) as lost:
                block(f"{name}:{block.__name__}:{method}", lambda guard: getattr(guard, method)())  # noqa: B023
            # A coroutine may have been cancelled before its call failed.
            assert lost.value.reason == "removed"
            assert type(lost.value.__context__) in (type(None), asyncio.CancelledError)
    # Whoever catches it has not prevented that the block was without its lock.
    for method in ("extend", "release"):
        with pytest.raises(lockmod.LostError), locker.lock(name) as guard:
            lose(guard)
            with pytest.raises(lockmod.LostError):
                getattr(guard, method)()


def test_a_lock_that_was_removed_has_the_votes_that_show_it(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=10, timeout=2)
    for method in ("release", "extend"):
        guard = locker.acquire(name)
        locker.settle()
        for node in servers:
            node.run("DEL", name)
        with pytest.raises(lockmod.LostError) as lost:
            getattr(guard, method)()
        assert lost.value.reason == "removed"
        # After a release, too: it said `released`.
        says = "is lost: a quorum of nodes says that it was removed by force: 3 of 3 nodes free"

        def is_told() -> bool:
            with pytest.raises(lockmod.LostError) as lost:
                guard.check()  # noqa: B023
            votes = [vote.vote for vote in lost.value.nodes]
            return str(lost.value).endswith(says) and votes == ["not_held"] * 3  # noqa: B023

        until("the last node has answered", is_told)
        assert guard.lost.wait(0) == "removed" and repr(guard).endswith(", removed>")


def test_who_is_in_the_way_is_told_as_it_is(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=10, timeout=2)

    def acquire(node: Node, name: str, label: str) -> None:
        node.run("LOCK.ACQUIRE", name, f"token-{label}", 60_000, "LABEL", label)

    def refused(name: str) -> lockmod.HeldError:
        with pytest.raises(lockmod.HeldError) as held:
            locker.try_acquire(name)
        return held.value

    # Three clients with a part each read as three holders.
    for node, label in zip(servers, "abc"):
        acquire(node, name, label)
    split = "is not free: no client has a quorum: 1 of 3 nodes holds it for a, 1 for b, 1 for c for up to"
    assert split in str(refused(name))
    # The vote of a node that was slow to grant was `granted` or `free`.
    for node in servers[:2]:
        acquire(node, f"{name}:slow", "a")
    for _ in range(5):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(servers[2].run, "DEBUG", "SLEEP", "0.05")
            assert [vote.vote for vote in refused(f"{name}:slow").nodes] == ["held", "held", "granted"]
    # A lock that is kept for a waiter read as held by another.
    kept, waiting = f"{name}:kept", [node.client() for node in servers]
    for node, waiter in zip(servers, waiting):
        node.run("CONFIG", "SET", "lockmod.reserve-ms", 10_000)
        acquire(node, kept, "a")
        ticket = f"{int(time.time() * 1000)}-0123456789abcdef"
        queue = ("QUEUE", 60_000, "TICKET", ticket, "NOTIFY", "nobody")
        waiter.execute_command("LOCK.RELEASE", kept, "waiter", *queue)  # its place ends with its connection
        node.run("LOCK.RELEASE", kept, "token-a")
    error = refused(kept)
    for node in servers:
        node.run("CONFIG", "SET", "lockmod.reserve-ms", 100)
    assert str(error).endswith("is not free: 3 of 3 nodes keep it for the first in line")
    assert (error.label, error.left) == (None, None)
    assert [vote.vote for vote in error.nodes] == ["reserved"] * 3


def test_a_refused_extension_leaves_the_lease_as_it_was(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    # The refused ttl stayed the lease's: no renewal succeeded after it, and the lease ended.
    guard = lockmod.Locker(nodes, ttl=2, timeout=0.5).acquire(name)
    try:
        for node in servers:
            node.run("CONFIG", "SET", "lockmod.max-ttl", 10_000)
        with pytest.raises(lockmod.RefusedError, match="the extension is refused: .*BADTTL") as refused:
            guard.extend(20)
        assert not refused.value.is_retryable and len(refused.value.nodes) == 3
        end = time.monotonic() + 4
        while time.monotonic() < end:
            guard.check()
            assert guard.validity <= 2
            time.sleep(0.05)
        for node in servers:
            node.run("ACL", "SETUSER", "default", "-lock.extend", "-lock.release")
        with pytest.raises(lockmod.RefusedError, match="the downgrade is refused: .*NOPERM"):
            guard.downgrade()
        with guard:
            pass  # the work was done in time, whatever becomes of the release
        with pytest.raises(lockmod.LostError):
            guard.check()
        other = lockmod.Locker(nodes, ttl=2, timeout=0.5).acquire(name + ":b")
        with pytest.raises(lockmod.RefusedError, match="the release is refused") as refused:
            other.release()
        assert not refused.value.is_retryable
    finally:
        for node in servers:
            node.run("ACL", "SETUSER", "default", "+@all")
            node.run("CONFIG", "SET", "lockmod.max-ttl", 86_400_000)


def test_nodes_that_hang_have_one_word(nodes: list[str], servers: list[Node], name: str) -> None:
    # One whose connection was made again was `unreachable`, after 2 s.
    for node in servers[:2]:
        node.pause()
    with pytest.raises(lockmod.NoQuorumError) as failed:
        Locker(nodes, ttl=1.5, timeout=0.2, wait=3).acquire(name)
    assert [vote.vote for vote in failed.value.nodes][:2] == ["timed_out"] * 2


def test_without_a_quorum_every_node_has_its_say(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=6, timeout=0.5)
    guard = locker.acquire(name)
    servers[0].kill()
    servers[1].pause()
    with pytest.raises(lockmod.NoQuorumError) as failed:
        guard.extend()
    assert failed.value.is_retryable
    assert [vote.vote for vote in failed.value.nodes] == ["unreachable", "timed_out", "confirmed"]
    guard.check()  # what was valid stays valid
    with pytest.raises(lockmod.NoQuorumError) as failed:
        locker.try_acquire(name + ":other")
    assert "timed out" in str(failed.value) or "unreachable" in str(failed.value)
    with pytest.raises(lockmod.NoQuorumError) as failed:
        guard.release()
    assert not failed.value.is_retryable
    guard.release()  # so there is nothing to repeat
    with pytest.raises(lockmod.LostError, match=r" was released \S+ ago, by release\(\) or at the end of its block$"):
        guard.check()
    servers[1].resume()


def test_a_wait_without_end_lasts_until_enough_nodes_are_back(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=10, timeout=0.2, wait=0.1)
    for node in servers[1:]:
        node.kill()
    with pytest.raises(lockmod.NoQuorumError, match="2 unreachable"):
        locker.acquire(name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: locker.acquire(name, wait=float("inf")))
        assert not wait([waiting], 1.5).done
        servers[1].start()
        waiting.result(PATIENCE).release()


def test_a_lease_that_expires_names_the_nodes_that_did_not_extend_it(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    # `check()` and the end of a block said only that the lease was not renewed.
    guard = Locker(nodes, ttl=1.5, timeout=0.2).acquire(name)

    def told(ends: Callable[[], object]) -> None:
        with pytest.raises(lockmod.LostError, match=r"time: 2 of 3 nodes ") as lost:
            ends()
        assert [vote.vote for vote in lost.value.nodes] == ["timed_out", "timed_out", "confirmed"]
        lease = f"the lease of lock '{name}' with fence {guard.fence} and a ttl of 1.5 s"
        assert str(lost.value).startswith(f"{lease} is lost: ")

    def block() -> None:
        with guard:
            for node in servers[:2]:
                node.pause()
            assert guard.lost.wait(PATIENCE) == "expired"
            told(guard.check)
            told(guard.extend)

    told(block)
    told(guard.check)  # after its release, too
    assert guard.lost.wait(0) == "expired"


def test_a_lease_that_nothing_extends_ends_because_of_that(nodes: list[str], name: str) -> None:
    guard = Locker(nodes, ttl=1.5, timeout=0.4).acquire(name, renew=False)
    guard.extend()
    assert guard.lost.wait(PATIENCE) == "expired"
    for end in (guard.check, guard.release, guard.check):
        with pytest.raises(lockmod.LostError, match="it was not extended in time") as lost:
            end()
        assert lost.value.nodes == ()


def test_a_lease_that_expires_names_its_ttl(nodes: list[str], name: str) -> None:
    # Whoever gave it in milliseconds, as in Node.js, or let it be chosen, sees the unit.
    def ends(guard: lockmod.Guard, ttl: str) -> None:
        assert guard.lost.wait(PATIENCE) == "expired"
        with pytest.raises(lockmod.LostError, match=f" and a ttl of {ttl} is lost: "):
            guard.check()

    ends(Locker(nodes, timeout=0.005).acquire(name, ttl=0.03, renew=False), "0.03 s")
    ends(Locker(nodes, ttl=0.8).acquire(f"{name}:2", renew=False), "0.8 s")
    ends(Locker(nodes, ttl=0.8).acquire_many([f"{name}:3"], renew=False)[0], "0.8 s")
    guard = Locker(nodes, ttl=0.8).acquire(f"{name}:4", renew=False)
    guard.extend(1.5)
    ends(guard, "1.5 s")


def test_a_shorter_ttl_shortens_the_lease_with_the_next_renewals(nodes: list[str], name: str) -> None:
    with Locker(nodes, ttl=3, timeout=0.4).lock(name) as guard:
        guard.extend(1.5)
        assert guard.validity > 1.5, "its end stays as it is"
        until("renewals ask for no more", lambda: guard.validity < 1.5)
        time.sleep(2)
        assert 0 < guard.validity < 1.5


def test_several_locks_take_the_options_of_one(locker: Locker, servers: list[Node], name: str) -> None:
    names = [f"{name}:{one}" for one in "ab"]
    held = locker.acquire(names[1], label="other")
    began = time.monotonic()
    with pytest.raises(lockmod.HeldError):
        locker.acquire_many(names, wait=0)
    with pytest.raises(lockmod.HeldError):
        asyncio.run(locker.aio.acquire_many(names, wait=0.2))
    assert 0.2 <= time.monotonic() - began < PATIENCE, "for all of them together"
    held.release()
    guards = locker.acquire_many(
        names, shared=[f"{name}:c"], wait=5, ttl=60, label="mine", renew=False, max_hold=50
    )
    for guard in guards:
        assert 45 < guard.validity <= 50, "max_hold is shorter than the ttl"
        assert servers[0].holder(guard.name.decode()) == "mine"
        guard.release()
    for wrong, says in (
        ({"wait": -1}, "wait is -1"),
        ({"ttl": 1e9}, "nodes' limit"),
        ({"label": 5}, "label is 5"),
        ({"renew": 1}, "renew is 1"),
        ({"max_hold": 0.001}, "max_hold"),
        ({"shared": True}, "shared is True, of type bool: give a list of names"),
    ):
        for some in (names, []):
            options: dict[str, Any] = wrong
            with pytest.raises(lockmod.OptionError, match=says):
                locker.acquire_many(some, **options)
            with pytest.raises(lockmod.OptionError, match=says):
                asyncio.run(locker.aio.acquire_many(some, **options))


def test_what_is_printed_is_short_and_has_no_secret(nodes: list[str], name: str) -> None:
    secret = [url.replace("redis://", "redis://someone:SECRET@") for url in nodes]
    places = ", ".join(url.removeprefix("redis://") for url in nodes)
    assert repr(Locker(secret)) == f"<Locker of {places}>"
    assert repr(Locker(secret).aio) == f"<AsyncLocker of <Locker of {places}>>"
    many = [f"redis://:SECRET@h{number}" for number in range(7)]
    assert repr(Locker(many)).endswith("h4:6379 and 2 more>")
    assert repr(Locker.__new__(Locker)) == "<Locker of nothing>"
    locker = Locker(nodes, ttl=10, timeout=2)
    assert repr(locker.lock(name)) == f"<Lock {name.encode()}>"
    assert repr(locker.lock(name, shared=True)) == f"<Lock {name.encode()}, shared>"
    assert len(repr(locker.lock("x" * 60_000))) < 120
    guard = locker.acquire(name)
    start = f"<Guard {name.encode()}, fence {guard.fence}, "
    assert re.fullmatch(re.escape(start) + r"valid for 9\.\d s>", repr(guard)), guard
    assert repr(guard.lost) == f"<Lost of {name.encode()}, not set>"
    guard.downgrade()
    assert repr(guard).startswith(start + "shared, valid for ")
    child = os.fork()
    if child == 0:
        os._exit(0 if repr(guard) == start + "held by the parent process>" else 1)
    assert os.waitpid(child, 0)[1] == 0
    vote = locker.settle()[0]
    assert repr(vote) == f"NodeVote(node='{places.split(',')[0]}', vote='confirmed', text='confirmed')"
    assert repr(locker.info(name + "none")[0]).endswith("state='free', fence=0, left=0.0, held_for=0.0, waiters=0, readers=0, waiting_readers=0)")
    guard.release()
    assert repr(guard) == start + "released>"
    assert repr(guard.lost) == f"<Lost of {name.encode()}, set>"


def test_an_encrypted_connection_to_a_plain_port_is_named(servers: list[Node]) -> None:
    encrypted = [node.url.replace("redis:", "rediss:") for node in servers]
    with pytest.raises(lockmod.NoQuorumError, match="a port without TLS never answers rediss://"):
        Locker(encrypted, ttl=1.5, timeout=0.2, wait=0).acquire("x")


def test_a_lease_that_has_ended_keeps_its_reason(nodes: list[str], servers: list[Node], name: str) -> None:
    # `release()` said `removed`, or that there was no quorum, and then `lost` said `released`.
    locker = Locker(nodes, ttl=1.5, timeout=0.4)

    def ends(what: str, release: Callable[[lockmod.Guard], object]) -> None:
        with pytest.raises(lockmod.LostError) as lost:
            release(guard)
        assert lost.value.reason == "expired", what
        assert guard.lost.wait(0) == "expired", what
        with pytest.raises(lockmod.LostError, match="was not extended in time$"):
            guard.check()
        guard.release()  # the second does nothing
        with pytest.raises(lockmod.LostError, match="was not extended in time$"):
            guard.keep()

    for is_over in (False, True):
        guard = locker.acquire(name, renew=False)
        assert guard.lost.wait(PATIENCE) == "expired"
        if is_over:
            until("the nodes agree", lambda: all(node.info(name)["state"] == b"free" for node in servers))
        ends(f"after the margin: {is_over}", lambda guard: guard.release())
    guard = locker.acquire(name, renew=False)
    assert guard.lost.wait(PATIENCE) == "expired"
    for node in servers[1:]:
        node.pause()
    ends("without a quorum", lambda guard: guard.release())


def test_wrong_settings_are_refused_with_what_to_do(nodes: list[str], locker: Locker, name: str) -> None:
    for wrong, says in [
        ({"nodes": []}, "at least one"),
        ({"nodes": nodes[:1] * 3}, "same node"),
        ({"nodes": nodes[:2]}, "even number"),
        ({"nodes": ["http://x"]}, "redis://"),
        ({"ttl": 0.001}, "ttl 0.001 s is too short: give 0.02 s to 86400 s"),
        ({"ttl": -1.0}, "ttl is -1: give a number of seconds, 0.02 to 86400"),
        ({"ttl": float("nan")}, "ttl is nan"),
        ({"ttl": float("inf")}, "ttl is inf: give a finite number of seconds"),
        ({"wait": -2}, "wait is -2: give a number of seconds, 0 or more"),
        ({"ttl": "5"}, "ttl is '5', of type str: give a number of seconds, 0.02 to 86400"),
        ({"wait": True}, "wait is True, of type bool: give a number of seconds, 0 or more"),
        ({"ttl": 10**400}, "ttl is 100000000000000000...0000000000000000000: give a number of seconds, 0.02 to 86400"),
        ({"wait": -(10**400)}, "wait is -10000000000000000...0000000000000000000: give a number of seconds, 0 or more"),
        ({"ttl": 10**9999}, "ttl is a large int: give a number of seconds, 0.02 to 86400"),
        ({"ttl": 90_000}, "with max_ttl"),
        ({"ttl": 86_401}, "ttl 86401 s is above the nodes' limit: give 0.02 s to 86400 s and let"),
        ({"ttl": 86_401, "max_ttl": 3_600}, "give 0.02 s to 3600 s"),
        ({"ttl": -1, "max_ttl": 3_600}, "0.02 to 3600"),
        ({"max_hold": -1}, "max_hold is -1: give a number of seconds, 0.02 or more"),
        ({"max_hold": 0.0123}, "max_hold 0.0123 s is too short: give at least 0.02 s"),
        ({"lost_margin": 30.5}, "lost_margin 30.5 s leaves too little time after a renewal"),
        ({"renew": 1}, "renew is 1, of type int: give True or False"),
        ({"allow_even_nodes": 1}, "allow_even_nodes is 1"),
        ({"label": 5}, "label is 5, of type int: give a str of up to 128 bytes"),
        ({"label": "\ud800"}, "UTF-8"),
        ({"cacert": 5}, "cacert is 5, of type int: give a path"),
        ({"cacert": b"ca.pem"}, "cacert is b'ca.pem', of type bytes: give a path, as a str or an os.PathLike"),
        ({"cacert": "", "nodes": ["rediss://x"]}, 'cannot read cacert "": no such file'),
        ({"ttl": 1e300}, "ttl is 1e300: give a number of seconds, 0.02 to 86400"),
        ({"drift": 5, "ttl": 6}, "drift 5 s leaves less than half of the ttl 6 s: give less than 3 s"),
        ({"nodes": 5}, "the nodes are 5: give a list"),
        ({"nodes": b"redis://x"}, "give a list"),
        ({"nodes": [None]}, "node 1 is None"),
        ({"nodes": "\ud800"}, "the list of nodes is broken text: give a text that UTF-8 can encode"),
        ({"nodes": b"redis://:hunter2@h"}, "the nodes are <class 'bytes'>: give a list"),
        ({"nodes": [b"redis://:hunter2@h"]}, "node 1 is <class 'bytes'>: give its URL"),
        ({"nodes": [("redis://:hunter2@h",)]}, "node 1 is <class 'tuple'>: give its URL"),
        ({"nodes": ["redis://:hunter2@h\ud800"]}, "node 1 is broken text: give a text"),
        ({"nodes": ["redis://h\n"]}, "a line end at character 10"),
        ({"nodes": ["\0"]}, "it has a control character (a NUL, for example) at character 1: leave it out"),
        ({"nodes": [nodes[0], "redis://b\x7f:pw@h", nodes[1]]}, "URL, 'redis://...@h': it has a control"),
        ({"nodes": ["redis://h/\n\x1b[2J"]}, r"'redis://h/\n\x1b[2J': it has a space or a line end"),
        ({"nodes": ["redis://h%0A"]}, "its host is not a valid DNS name"),
        ({"nodes": ["unix:///a%0Ab", "unix:///a%0Ab"]}, r"nodes 1 and 2, /a\nb and /a\nb, are the same node"),
        ({"label": "\n" * 129}, "at most 128"),
        ({"timeout": 20.0, "ttl": 30.0}, "timeout 20 s does not fit into the ttl 30 s: give 0.001 s to 10 s, a third"),
        ({"timeout": 1e300}, "timeout is 1e300: give a number of seconds, 0.001 to 10"),
        ({"timeout": -1, "ttl": 6}, "timeout is -1: give a number of seconds, 0.001 to 2"),
        ({"drift": -1, "ttl": 6}, "drift is -1: give a number of seconds, 0 or more, and less than 3"),
        ({"lost_margin": -1}, "0 or more, and less than 9.85"),
        ({"ttl": -1, "timeout": 0.5}, "ttl is -1: give a number of seconds, 1.5 to 86400"),
        ({"ttl": "-1", "timeout": 0.5}, "ttl is '-1', of type str: give a number of seconds, 1.5 to 86400"),
        ({"timeout": [], "ttl": 6}, "timeout is [], of type list: give a number of seconds, 0.001 to 2"),
        ({"ttl": 0.005, "timeout": 0.5}, "ttl 0.005 s is too short: give 1.5 s to 86400 s"),
        ({"max_ttl": -1}, "max_ttl is -1: give a number of seconds, 0.02 or more"),
        ({"max_ttl": 0.005}, "max_ttl 0.005 s is below the shortest ttl that the settings allow: give 0.02 s or"),
        ({"max_ttl": 0.9, "timeout": 0.5}, "give 1.5 s or more"),
        ({"label": "x" * 129}, "at most 128"),
        ({"cacert": "/no/such/file"}, "rediss://"),
        ({"cacert": "/dev/null", "nodes": ["rediss://x"]}, "certificates, as PEM, in /dev/null"),
    ]:
        with pytest.raises(lockmod.OptionError) as refused:
            Locker(**{"nodes": nodes, **wrong})  # type: ignore[arg-type]
        assert says in str(refused.value), refused.value
        assert str(refused.value).isprintable(), "one error is one line"
        assert isinstance(refused.value, ValueError)
    # One text, as `lockmod nodes` prints it. Regression: it was cut within the URL of a Cluster.
    for all_nodes in [
        "redis+cluster://h:1,h:2",
        "redis+sentinel://h:1,h:2/g, redis://h:3,redis://h:4",
    ]:
        Locker(all_nodes)
    assert repr(Locker("unix:///a%0Ab")) == r"<Locker of /a\nb>"
    assert repr(Locker("redis+sentinel://h/a%0Ab")) == r"<Locker of h:26379/a\nb>"
    assert repr(Locker("redis://größe.example")) == "<Locker of xn--gre-6ka8i.example:6379>"
    with pytest.raises(lockmod.OptionError, match="an even number"):
        Locker("redis+cluster://h:1,h:2,redis://h:3")
    with pytest.raises(lockmod.OptionError) as refused:
        Locker(nodes, ttl=90_000)
    assert "max_ttl()" not in str(refused.value)
    with pytest.raises(lockmod.OptionError) as refused:
        Locker(nodes, timeout=1e9)
    assert "or ask for a ttl" not in str(refused.value), "no ttl is long enough"
    for seconds in (-1.0, float("nan"), "5", 90_000.0, 0.001):
        with pytest.raises(lockmod.OptionError, match="ttl"):
            locker.lock(name, ttl=seconds)  # type: ignore[arg-type]
    for seconds in (0.001, -1.0, float("inf"), "5", True):
        with pytest.raises(lockmod.OptionError, match="ttl"):
            locker.acquire(name, ttl=seconds)  # type: ignore[arg-type]
    with locker.acquire(name, renew=False) as guard:
        with pytest.raises(lockmod.OptionError, match="ttl is '5'"):
            guard.extend("5")  # type: ignore[arg-type]
        with pytest.raises(lockmod.OptionError, match="timeout is '5'"):
            guard.lost.wait("5")  # type: ignore[arg-type]
    Locker(nodes, ttl=5, wait=2**70)
    # None is the default of each option.
    odd: dict[str, Any] = dict.fromkeys(inspect.getfullargspec(Locker).kwonlyargs)
    options: dict[str, Any] = dict.fromkeys(inspect.getfullargspec(locker.acquire).kwonlyargs)
    with Locker(nodes, **odd).acquire(name, **options) as guard:
        assert guard.exclusive and 15 < guard.validity <= 30
    del options["shared"]
    locker.acquire_many([name], shared=None, **options)[0].release()
    Locker(",".join(nodes[:2]), allow_even_nodes=True)


def test_a_subclass_that_does_not_initialise_its_base_is_told() -> None:
    class Own(Locker):
        def __init__(self) -> None:
            pass

    # `close` told of an attribute that only this package has.
    for use in (lambda own: own.try_acquire("a"), lambda own: own.aio.lock("a"), Own.close, Own.settle):
        with pytest.raises(RuntimeError, match=r"Own.__init__\(\) has not called super\(\)"):
            use(Own())


def test_a_name_is_text_or_bytes_and_not_empty(locker: Locker) -> None:
    # bytes() took a number for a length: 5 was a lock of five zeros, and True of one.
    for wrong, says in [
        (5, "the name is 5, of type int: give a str or bytes"),
        (True, "the name is True"),
        (None, "the name is None"),
        (["a"], "the name is"),
        ("", "the name is empty: is a variable not set"),
        (b"", "the name is empty"),
        ("\ud800", "UTF-8"),
        ("x" * 65537, "the lock's name has 65537 bytes: give at most 65536"),
    ]:
        calls = (locker.acquire, locker.try_acquire, locker.lock, locker.info, locker.aio.lock)
        for call in calls:
            with pytest.raises(lockmod.OptionError, match=says):
                call(wrong)  # type: ignore[operator]
        for names, shared in (([wrong], []), ([], [wrong])):
            with pytest.raises(lockmod.OptionError, match=says):
                locker.acquire_many(names, shared=shared)  # type: ignore[arg-type]
    for letters in ("ab", b"ab", bytearray(b"ab"), memoryview(b"ab"), 5):
        with pytest.raises(lockmod.OptionError, match="a list of names"):
            locker.acquire_many(letters)  # type: ignore[arg-type]
        with pytest.raises(lockmod.OptionError, match="shared is .*: give a list of names"):
            locker.acquire_many([], shared=letters)  # type: ignore[arg-type]
    for name in (bytearray(b"same"), memoryview(b"same"), "same"):
        with locker.acquire(name) as guard:
            assert guard.name == b"same"


def _in_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(PATIENCE)


def test_a_block_may_end_in_another_thread_than_it_began_in(locker: Locker, name: str) -> None:
    # As a generator that a web framework resumes in any thread of a pool. It ended with a KeyError,
    # and the lock stayed held.
    lock = locker.lock(name)
    stack = ExitStack()
    guard = stack.enter_context(lock)
    _in_thread(stack.close)
    assert guard.lost.wait(0) == "released"

    # Its own comes first, and a block that has not begun cannot end.
    readers = locker.lock(name, shared=True)
    other = ExitStack()
    _in_thread(lambda: other.enter_context(readers))
    with readers as own:
        pass
    assert own.lost
    _in_thread(other.close)
    with pytest.raises(RuntimeError, match="has not begun"):
        readers.__exit__(None, None, None)
    assert locker.try_acquire(name)


class Wrapper:
    """Passes on whatever it is given, as tracing does."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __enter__(self, *given: Any, **named: Any) -> Any:
        return self.wrapped.__enter__(*given, **named)

    def __exit__(self, *given: Any, **named: Any) -> Any:
        return self.wrapped.__exit__(*given, **named)


def test_a_block_may_be_wrapped(locker: Locker, name: str) -> None:
    with pytest.raises(ValueError, match="of the block"), Wrapper(locker.lock(name)):
        raise ValueError("of the block")
    with Wrapper(locker.acquire(name)) as guard:
        pass
    with Wrapper(locker.acquire_many([name])) as guards:
        pass
    assert [one.lost.wait(0) for one in (guard, *guards)] == ["released", "released"]
    with pytest.raises(TypeError, match="calls it"):
        guard.__exit__(None, None, None, more=1)


def test_of_several_blocks_that_end_elsewhere_none_keeps_the_lock(locker: Locker, name: str) -> None:
    readers = locker.lock(name, shared=True)
    for ends_at_home in (False, True):
        stacks = [ExitStack(), ExitStack()]
        guards = [stack.enter_context(readers) for stack in stacks]
        with pytest.raises(RuntimeError, match="with locker.acquire"):
            _in_thread(stacks[0].close)
        assert not any(guard.lost for guard in guards), "whose block goes on is unknown"
        if ends_at_home:
            stacks[1].close()
        else:
            _in_thread(stacks[1].close)
        assert all(guard.lost.wait(0) == "released" for guard in guards)
        locker.settle()
        locker.try_acquire(name).release()


def test_a_statement_ends_its_own_block_in_any_order(locker: Locker, name: str) -> None:
    # The first that ended was taken for the one that had begun last.
    readers = locker.lock(name, shared=True)

    def hold() -> Iterator[lockmod.Guard]:
        with readers as guard:
            yield guard

    def begun(home: Executor) -> tuple[Iterator[lockmod.Guard], lockmod.Guard]:
        block = hold()
        return block, home.submit(next, block).result(PATIENCE)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        for homes, ends in (((one, one), (one, one)), ((one, two), (two, one)), ((one, one), (two, two))):
            blocks = [begun(home) for home in homes]
            for place, end in enumerate(ends):
                block, guard = blocks[place]
                assert end.submit(next, block, None).result(PATIENCE) is None
                assert guard.lost.wait(0) == "released"
                assert not any(other.lost for _, other in blocks[place + 1 :])
    # One without a statement, around another.
    with ExitStack() as stack:
        outer = stack.enter_context(readers)
        with readers as inner:
            pass
        assert inner.lost and not outer.lost
    assert outer.lost
    locker.settle()
    locker.try_acquire(name).release()


def test_a_guard_whose_lease_has_ended_begins_no_block(locker: Locker, servers: list[Node], name: str) -> None:
    guard = locker.acquire(name)
    with guard:
        pass
    with pytest.raises(lockmod.LostError) as released:
        guard.__enter__()
    assert released.value.reason == "released"
    taken = Locker([node.url for node in servers], ttl=1.5, timeout=0.4).acquire(name)
    for node in servers:
        node.run("DEL", name)
    assert taken.lost.wait(PATIENCE) == "removed"
    with pytest.raises(lockmod.LostError), taken:
        raise AssertionError("the block has begun")


def test_what_cannot_be_called_is_refused_at_once(locker: Locker, name: str) -> None:
    async def forgotten(reason: str) -> None:
        raise AssertionError(reason)

    class Forgotten:
        async def __call__(self, reason: str) -> None:
            raise AssertionError(reason)

    with locker.lock(name) as guard:
        for wrong in (None, 5, "x", forgotten, Forgotten()):
            with pytest.raises(lockmod.OptionError, match="the callback is"):
                guard.lost.call(wrong)  # type: ignore[arg-type]


def test_several_locks_or_none(locker: Locker, nodes: list[str], name: str) -> None:
    a, b = name + ":a", name + ":b"
    guards = locker.acquire_many([b, a, b])
    assert [guard.name for guard in guards] == [a.encode(), b.encode()]
    with pytest.raises(lockmod.HeldError):
        Locker(nodes, wait=0).acquire_many([name + ":0", b])
    assert {told.state for told in locker.info(name + ":0")} == {"free"}
    guards[0].release()
    assert not guards[1].lost
    guards[1].release()


def test_the_end_of_a_block_gives_several_locks_back(locker: Locker, servers: list[Node], name: str) -> None:
    names = [name + ":a", name + ":b"]

    def are_free() -> bool:
        locker.settle()
        return all(node.info(one)["state"] == b"free" for node in servers for one in names)

    with pytest.raises(ZeroDivisionError), locker.acquire_many(names) as guards:
        assert [guard.name.decode() for guard in guards] == names
        raise ZeroDivisionError
    assert are_free()
    with pytest.raises(lockmod.LostError) as lost, locker.acquire_many(names):
        for node in servers:
            node.run("DEL", names[0])
    assert lost.value.reason == "removed" and are_free()
    guards = locker.acquire_many(names)
    guards[0].release()
    with pytest.raises(lockmod.LostError), guards:
        raise AssertionError("the block has begun")
    assert are_free()


@pytest.mark.parametrize("kind", ["with", "async with"])
def test_the_end_of_a_block_of_very_many_locks_leaves_its_error(locker: Locker, name: str, kind: str) -> None:
    # From about 1000 locks on it was a RecursionError, in which that of the block was lost.
    names = [f"{name}:{number}" for number in range(1500)]

    async def work() -> None:
        async with await locker.aio.acquire_many(names):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        if kind == "async with":
            asyncio.run(work())
        else:
            with locker.acquire_many(names):
                raise ZeroDivisionError
    assert error.value.__context__ is None
    locker.settle()
    locker.acquire_many(names, wait=0)


@pytest.mark.parametrize("kind", ["with", "async with"])
def test_the_end_of_a_block_waits_once_for_nodes_that_hang(
    nodes: list[str], servers: list[Node], name: str, kind: str
) -> None:
    # It waited for the release of one lock after the other: 10 times as long as here.
    locker = Locker(nodes, ttl=60, timeout=1)
    names = [f"{name}:{number}" for number in range(10)]
    began_at = 0.0

    def hang() -> float:
        locker.settle()
        for node in servers[:2]:
            node.pause()
        return time.monotonic()

    async def work() -> float:
        async with await locker.aio.acquire_many(names):
            return hang()

    if kind == "async with":
        began_at = asyncio.run(work())
    else:
        with locker.acquire_many(names):
            began_at = hang()
    assert time.monotonic() - began_at < 5


def test_the_guards_of_several_locks_stay_as_they_are(locker: Locker, servers: list[Node], name: str) -> None:
    # `guards.append(1)` was possible: the end of the block raised AttributeError, and released nothing.
    names = [f"{name}:a", f"{name}:b"]

    def change(guards: Any) -> None:
        for change in ("append", "clear", "pop", "extend", "remove", "sort"):
            assert not hasattr(guards, change)
        with pytest.raises(TypeError):
            guards[0] = 1
        with pytest.raises(TypeError):
            del guards[0]
        assert [guard.name.decode() for guard in guards] == names and len(guards) == 2
        assert guards[-1] is guards[1]

    async def work() -> None:
        async with await locker.aio.acquire_many(names) as guards:
            change(guards)
            first, second = guards
            first.check()
            second.check()

    with locker.acquire_many(names) as guards:
        change(guards)
    assert all(guard.lost for guard in guards)
    asyncio.run(work())
    locker.settle()
    assert {node.info(one)["state"] for node in servers for one in names} == {b"free"}


def test_a_guard_that_is_kept_is_released_by_nothing(locker: Locker, nodes: list[str], name: str) -> None:
    locker.acquire(name).keep()
    program = "import asyncio, lockmod\n"
    program += f"locker = lockmod.Locker({nodes!r}, timeout=2)\nlocker.acquire({name!r} + ':2').keep()\n"
    program += f"asyncio.run(locker.aio.acquire({name!r} + ':3')).keep()\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
    gc.collect()
    locker.settle()
    for kept in (name, f"{name}:2", f"{name}:3"):
        assert "held" in {told.state for told in locker.info(kept)}
    with locker.acquire(f"{name}:4") as guard:
        guard.keep()
    assert guard.lost.wait(0) == "released", "a block releases it"


def test_an_extension_in_progress_does_not_release_a_guard_that_is_kept(
    locker: Locker, servers: list[Node], name: str
) -> None:
    # It was dropped with the extension, which did not know.
    guard = locker.acquire(name, renew=False)
    guard.keep()
    locker.settle()
    for node in servers:
        node.pause()
    port = lockmod._lockmod.Port()
    guard._lease.extend(None, port)
    port.drive()
    del guard
    gc.collect()
    for node in servers:
        node.resume()
    until("the extension is over", port.take)
    locker.settle()
    assert {told.state for told in locker.info(name)} == {"held"}


def test_a_subinterpreter_is_refused(nodes: list[str], name: str) -> None:
    # Its end released the locks of all others.
    program = f"""if True:
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import lockmod
        guard = lockmod.Locker({nodes!r}, timeout=2).acquire({name!r})
        other = interpreters.create()
        try:
            print(interpreters.run_string(other, "import lockmod"))
        except Exception as refused:
            print(repr(refused))
        interpreters.destroy(other)
        guard.check()
        guard.release()
        """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0 and "ImportError" in ran.stdout, ran.stdout + ran.stderr


def test_a_second_import_gives_the_same_package(nodes: list[str], name: str) -> None:
    # The native part raised the classes of the first import, which no `except` of the second caught.
    program = f"""if True:
        import sys
        from unittest.mock import patch
        with patch.dict(sys.modules):
            import lockmod as first
        import lockmod
        from lockmod.compat import Lock
        assert lockmod is first and lockmod.compat.Lock is Lock
        for name in [name for name in sys.modules if name.startswith("lockmod")]:
            del sys.modules[name]
        from lockmod.compat import Lock as Other
        assert Other is Lock
        del sys.modules["lockmod._errors"], sys.modules["lockmod"]
        from lockmod import HeldError, Locker
        holder = Locker({nodes!r}, timeout=2).acquire({name!r})
        try:
            first.Locker({nodes!r}, timeout=2).try_acquire({name!r})
        except HeldError as error:
            print("caught", type(error) is first.HeldError)
        holder.release()
        """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0 and ran.stdout == "caught True\n", ran.stdout + ran.stderr


def test_a_thread_with_the_smallest_stack_can_acquire(nodes: list[str], name: str) -> None:
    program = f"""if True:
        import threading
        import lockmod
        locker = lockmod.Locker({nodes!r}, timeout=2)
        def work():
            with locker.lock({name!r}) as guard:
                guard.extend()
                print("fence", guard.fence > 0)
        threading.stack_size(32 * 1024)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0 and ran.stdout == "fence True\n", ran.stdout + ran.stderr


def test_an_extension_may_have_a_ttl_of_its_own(locker: Locker, servers: list[Node], name: str) -> None:
    with locker.lock(name, renew=False) as guard:
        guard.extend(60)
        assert 50 < guard.validity < 60
        until("all know", lambda: all(node.info(name)["ttl_left_ms"] > 50_000 for node in servers))
        guard.extend(8)
        locker.settle()
        # The holder still relies on the earlier extension, so the nodes must keep it too.
        assert guard.validity > 50
        assert all(node.info(name)["ttl_left_ms"] > 50_000 for node in servers)
        # Without renewal the timeout need not fit into it.
        for ttl in (0.001, 0, "5"):
            with pytest.raises(lockmod.OptionError, match="give .*0.02 (s )?to 86400"):
                guard.extend(ttl)  # type: ignore[arg-type]


def test_a_guard_that_nobody_has_any_more_gives_the_lock_back(locker: Locker, name: str) -> None:
    guard = locker.acquire(name)
    fence = guard.fence
    del guard
    gc.collect()
    locker.settle()
    with locker.try_acquire(name) as guard:
        assert guard.fence > fence


def test_a_block_whose_loop_was_closed_gives_the_lock_back(locker: Locker, name: str) -> None:
    # It ended with a RuntimeError of asyncio on stderr.
    async def work(entered: asyncio.Event) -> None:
        async with locker.lock(name):
            entered.set()
            await asyncio.Event().wait()

    async def begin() -> asyncio.Task[None]:
        entered = asyncio.Event()
        task = asyncio.ensure_future(work(entered))
        await entered.wait()
        return task

    said: list[Any] = []
    loop, hook = asyncio.new_event_loop(), sys.unraisablehook
    sys.unraisablehook = said.append
    try:
        task = loop.run_until_complete(begin())
        loop.close()
        # It complains that it is pending.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task, loop
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert not said
    locker.settle()
    locker.try_acquire(name).release()


def test_whoever_watches_a_lease_keeps_its_lock(locker: Locker, name: str) -> None:
    lost = locker.acquire(name).lost
    gc.collect()
    locker.settle()
    assert not lost and {told.state for told in locker.info(name)} == {"held"}
    del lost
    gc.collect()
    locker.settle()
    locker.try_acquire(name).release()


def test_a_release_while_an_extension_is_under_way_waits_for_it(locker: Locker, servers: list[Node], name: str) -> None:
    outcomes: list[str] = []

    def extend(guard: lockmod.Guard) -> None:
        try:
            guard.extend()
            outcomes.append("extended")
        except lockmod.LostError as lost:
            outcomes.append(lost.reason)

    for _ in range(20):
        guard = locker.acquire(name)
        extending = threading.Thread(target=extend, args=(guard,))
        extending.start()
        guard.release()
        guard.release()  # the second does nothing
        extending.join(PATIENCE)
        assert guard.lost
    assert len(outcomes) == 20 and set(outcomes) <= {"extended", "released"}
    locker.settle()
    assert {node.info(name)["state"] for node in servers} == {b"free"}


def _call(duration: float) -> None:
    """Keeps the GIL this long, like a computation in C that never releases it."""
    ctypes.PyDLL(None).usleep(int(duration * 1e6))


def test_the_lock_outlives_a_thread_that_keeps_the_gil(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)
    with locker.lock(name) as guard:
        # The quorum has it; after this, the last node has it too.
        locker.settle()
        _call(4)
        guard.check()
        assert guard.validity > 0.1
        told = servers[0].info(name)
        assert told["fence"] == guard.fence and told["held_for_ms"] >= 4_000


def test_lost_is_not_later_than_what_keeps_the_gil(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)
    heard: list[float] = []
    guard = locker.acquire(name)
    guard.lost.call(lambda reason: heard.append(time.monotonic()))
    for node in servers:
        node.pause()
    _call(2)
    awake = time.monotonic()
    assert guard.lost.is_set() and guard.lost.wait(0) == "expired"
    until("the callback is called", lambda: heard)
    assert heard[0] - awake < 1
    for node in servers:
        node.resume()


def test_callbacks_are_for_losses_and_not_for_releases(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)
    reasons: list[str] = []
    with locker.lock(name) as guard:
        guard.lost.call(reasons.append)
    lost = locker.acquire(name)
    lost.lost.call(reasons.append)
    for node in servers:
        node.run("DEL", name)
    until("the loss is told", lambda: reasons)
    assert reasons == ["removed"]


def test_a_callback_comes_beside_many_open_files(nodes: list[str]) -> None:
    # Its thread ended with a ValueError of `select`, which takes descriptors below 1024.
    program = f"""if True:
        import os, resource, threading, lockmod
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, most))
        guard = lockmod.Locker({nodes!r}, ttl=0.5, renew=False).acquire("many-files")
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        heard = threading.Event()
        guard.lost.call(lambda reason: heard.set())
        assert heard.wait({PATIENCE})
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE * 2)


def test_a_guard_whose_callback_refers_to_it_is_forgotten(
    locker: Locker, nodes: list[str], name: str
) -> None:
    # The thread kept the callback, and with it the lock, until the program ended.
    class Job:
        def __init__(self, guard: Any) -> None:
            self.guard, self.heard = guard, threading.Event()
            guard.lost.call(self.stop)

        def stop(self, reason: str) -> None:
            self.heard.set()

    async def work() -> None:
        job = weakref.ref(Job(await locker.aio.acquire(name)))
        gc.collect()
        assert job() is None
        await locker.aio.settle()
        await (await locker.aio.try_acquire(name)).release()

    job = weakref.ref(Job(locker.acquire(name)))
    gc.collect()
    assert job() is None
    locker.settle()
    locker.try_acquire(name).release()
    asyncio.run(work())

    # What was lost before the guard went is told, though only its callback is left.
    short = Locker(nodes, ttl=0.5, renew=False)
    reasons: list[str] = []
    for _ in range(5):
        guard = short.acquire(name)
        guard.lost.call(reasons.append)
        while not guard.lost:
            pass
        del guard
    until("all losses are told", lambda: len(reasons) == 5)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("hook", [lambda told: None, lambda told: 1 / 0])
def test_a_callback_that_raises_leaves_the_others_theirs(
    nodes: list[str],
    name: str,
    error: type[BaseException],
    hook: Callable[[object], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", hook)
    told: list[str] = []

    def fail(reason: str) -> None:
        told.append(reason)
        raise error

    for count in (1, 2):
        guard = Locker(nodes, ttl=0.5, renew=False).acquire(name)
        guard.lost.call(fail)
        until("the loss is told", lambda count=count: len(told) == count)


def test_an_interrupt_ends_the_wait_and_leaves_nothing_behind(locker: Locker, servers: list[Node], name: str) -> None:
    guard = locker.acquire(name)

    def interrupt() -> None:
        until("it stands in line", lambda: servers[0].info(name)["waiters"] == 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        locker.acquire(name, wait=PATIENCE)
    thread.join()
    until("the line is empty", lambda: all(node.info(name)["waiters"] == 0 for node in servers))
    guard.release()
    assert {told.state for told in locker.info(name)} <= {"free", "reserved"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_noticed(locker: Locker, servers: list[Node], name: str) -> None:
    guard = locker.acquire(name)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert guard.validity == 0 and guard.lost.is_set()
            for call in (guard.extend, guard.downgrade, guard.release, guard.keep, guard.lost.wait):
                try:
                    call()
                except lockmod.ForkedError:
                    continue
                raise AssertionError(call)
            del guard
            gc.collect()
            with locker.lock(name + ":child") as own:
                own.check()
            try:
                locker.try_acquire(name)
            except lockmod.HeldError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    guard.check()
    # A quorum has granted it; the third node may be behind.
    assert [node.info(name)["fence"] for node in servers].count(guard.fence) >= 2
    guard.release()


FORKED = """if True:
    import asyncio, os, sys, warnings
    warnings.simplefilter("ignore")
    import lockmod, lockmod.compat
    NODES, NAME = {nodes!r}, {name!r}
    locker = lockmod.Locker(NODES, ttl=300, timeout=2)

    def blocks():
        yield locker.lock(NAME)
        yield locker.acquire(NAME)
        yield locker.acquire_many([NAME, NAME + ":2"])
        yield lockmod.compat.Lock(locker, NAME, timeout=300)

    async def async_blocks():
        yield locker.lock(NAME)
        yield await locker.aio.acquire(NAME)
        yield await locker.aio.acquire_many([NAME, NAME + ":2"])
        yield lockmod.compat.AsyncLock(locker, NAME, timeout=300)

    def fork(error):
        if os.fork() == 0:
            if error is not None:
                raise error
            return True
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        return False

    # It ends the child well if `end` is what the block ended with.
    def check(end, error):
        is_right = end is error if error is not None else "forked" in str(end)
        if is_right:
            os._exit(0)
        raise AssertionError(error) from end

    async def in_coroutines(error):
        async for block in async_blocks():
            is_child = False
            try:
                async with block:
                    is_child = fork(error)
            except BaseException as end:
                check(end, error)
            assert not is_child

    for error in (None, KeyError("k"), SystemExit(0)):
        for block in blocks():
            is_child = False
            try:
                with block:
                    is_child = fork(error)
            except BaseException as end:
                check(end, error)
            assert not is_child
        asyncio.run(in_coroutines(error))
    """


def test_a_block_in_a_forked_child_ends_with_its_own_error(nodes: list[str], name: str) -> None:
    """Regression: what ended the block was replaced, sys.exit(0) for example."""
    program = FORKED.format(nodes=nodes, name=name)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=2 * PATIENCE)


WAITS_WITH_A_CHILD = """if True:
    import os, sys, threading, warnings
    warnings.simplefilter("ignore")
    import lockmod
    locker = lockmod.Locker({nodes!r}, ttl=300, timeout=2)
    thread = threading.Thread(target=locker.acquire, args=({name!r},), kwargs=dict(wait=300))
    thread.start()
    while any(told.waiters == 0 for told in locker.info({name!r})):
        pass
    if os.fork() == 0:
        print("forked", flush=True)
        os.read(0, 1)
        os._exit(0)
    """


def test_a_waiter_that_is_killed_leaves_the_line_although_its_forked_child_lives(
    locker: Locker, servers: list[Node], nodes: list[str], name: str
) -> None:
    """Regression: the child kept the connections, and the waiter its place."""
    program = WAITS_WITH_A_CHILD.format(nodes=nodes, name=name)
    with locker.lock(name):
        pipe = subprocess.PIPE
        waits = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe)
        assert waits.stdin is not None and waits.stdout is not None
        assert waits.stdout.readline() == b"forked\n"
        assert all(node.info(name)["waiters"] == 1 for node in servers)
        waits.kill()
        waits.wait()
        until(
            "the line is empty", lambda: all(node.info(name)["waiters"] == 0 for node in servers)
        )
        # The child lives until its standard input ends.
        assert not select.select([waits.stdout], [], [], 0)[0]
        waits.stdin.close()
        assert waits.stdout.read() == b""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_children_have_tokens_of_their_own(locker: Locker, name: str) -> None:
    """Regression: both had the state of the parent's generator, and held the lock together."""
    with locker.lock(name):
        pass
    (told, tells), (asked, asks) = os.pipe(), os.pipe()

    def child(hold: bool) -> int:
        number = os.fork()
        if number == 0:
            code = 1
            try:
                guard = locker.try_acquire(name)
                os.write(tells, b"+")
                if hold:
                    os.close(asks)
                    os.read(asked, 1)
                guard.release()
                code = 0
            except lockmod.HeldError:
                code = 2
            finally:
                os._exit(code)
        return number

    first = child(hold=True)
    assert os.read(told, 1) == b"+"
    second = child(hold=False)
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 2
    os.close(asks)
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
    for pipe in (told, tells, asked):
        os.close(pipe)


def test_a_locker_that_is_closed_ends_its_connections_with_its_last_guard(servers: list[Node], name: str) -> None:
    def connections() -> int:
        return sum(node.run("CLIENT", "LIST").count(b" user=closing ") for node in servers)

    for node in servers:
        node.run("ACL", "SETUSER", "closing", "on", ">pw", "~*", "&*", "+@all")
    urls = [node.url.replace("://", "://closing:pw@") for node in servers]
    with Locker(urls, ttl=1.5, timeout=0.4) as locker:
        guard = locker.acquire(name)
        lock = locker.lock(f"{name}:2")
        assert connections() >= 3
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locker.acquire, name, wait=PATIENCE)
            until("it waits", lambda: servers[0].info(name)["waiters"] == 1)
            locker.close()
            locker.close()
            for refused in (
                lambda: locker.acquire(name),
                lambda: locker.try_acquire(name),
                lambda: locker.acquire_many([name]),
                lambda: locker.lock(name),
                lambda: lock.__enter__(),
                lambda: locker.__enter__(),
                lambda: locker.info(name),
                lambda: locker.settle(),
                lambda: asyncio.run(locker.aio.acquire(name)),
                lambda: asyncio.run(locker.aio.acquire_many([name])),
                lambda: asyncio.run(locker.aio.info(name)),
            ):
                with pytest.raises(lockmod.RefusedError, match="^the locker is closed: make another"):
                    refused()
            assert repr(locker).startswith("<Locker of 127.0.0.1")
            time.sleep(2)
            guard.check()
            guard.extend()
            guard.release()
            late = waiting.result(PATIENCE)
    assert late.fence == guard.fence + 1
    late.release()
    # Both objects still exist.
    until("the connections have ended", lambda: connections() == 0)
    assert late.lost and guard.lost
    with pytest.raises(KeyError), Locker(urls, timeout=0.4) as locker:
        forgotten = locker.acquire(name)
        raise KeyError
    del forgotten
    until("the connections have ended", lambda: connections() == 0)
    assert {node.info(name)["state"] for node in servers} == {b"free"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_locker_is_closed_in_a_forked_child_too(locker: Locker, nodes: list[str], name: str) -> None:
    closed = Locker(nodes, timeout=2)
    closed.close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            locker.close()
            for one in (closed, locker):
                with pytest.raises(lockmod.RefusedError, match="the locker is closed"):
                    one.acquire(name)
                with pytest.raises(lockmod.RefusedError, match="the locker is closed"):
                    one.__enter__()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    locker.acquire(name).release()


def test_a_program_that_ends_while_it_waits_leaves_nothing_behind(
    locker: Locker, nodes: list[str], name: str
) -> None:
    """Regression: the releases at its end handed the lock to its own waiter."""
    program = f"""if True:
        import lockmod, threading
        locker = lockmod.Locker({nodes!r}, timeout=2)
        guard = locker.acquire({name!r})
        wait = lambda: locker.acquire({name!r}, wait=60)
        threading.Thread(target=wait, daemon=True).start()
        while any(told.waiters == 0 for told in locker.info({name!r})):
            pass
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
    assert {told.state for told in locker.info(name)} == {"free"}


def test_a_program_that_ends_leaves_nothing_behind(locker: Locker, nodes: list[str], servers: list[Node], name: str) -> None:
    for keep in ("", "del locker"):
        program = f"import lockmod\nlocker = lockmod.Locker({nodes!r}, timeout=2)\n"
        program += f"guard = locker.acquire({name!r})\n{keep}\n"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
        assert {told.state for told in locker.info(name)} == {"free"}


def test_who_holds_it_is_told_without_touching_it(locker: Locker, servers: list[Node], name: str) -> None:
    with locker.lock(name, label="worker-7") as guard:
        told = locker.info(name)
        assert {(node.state, node.label, node.fence) for node in told} == {("held", "worker-7", guard.fence)}
        servers[2].kill()
        vote = until("it is gone", lambda: locker.info(name)[2].vote)
        assert vote.vote == "unreachable"


@pytest.mark.parametrize("daemon", [False, True])
def test_an_exception_that_is_thrown_into_a_waiting_thread_ends_its_wait(
    locker: Locker, nodes: list[str], name: str, daemon: bool
) -> None:
    """Task queues stop their workers so. Regression: it came when the wait was over."""

    class Stop(Exception):
        pass

    ended: list[object] = []

    def wait() -> None:
        try:
            ended.append(Locker(nodes, timeout=2).acquire(name, wait=PATIENCE * 10))
        except Stop:
            ended.append(Stop)

    with locker.lock(name):
        thread = threading.Thread(target=wait, daemon=daemon)
        thread.start()
        until("it waits", lambda: all(told.waiters == 1 for told in locker.info(name)))
        number = ctypes.c_ulong(thread.ident or 0)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Stop)) == 1
        thread.join(PATIENCE)
        assert ended == [Stop]
        until("nobody waits", lambda: all(told.waiters == 0 for told in locker.info(name)))
