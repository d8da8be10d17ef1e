"""Readers and writers, from threads and from coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Callable

import pytest
from conftest import PATIENCE, Node, until, until_async

import lockmod
from lockmod import Locker
from lockmod.compat import Lock as RedisLock


def waits(servers: list[Node], name: str, count: int) -> None:
    until(f"{count} wait", lambda: all(node.info(name)["waiters"] == count for node in servers))


def readers(node: Node, name: str) -> int:
    return int(node.info(name).get("readers", 0))


class Waiting:
    """An acquisition in a thread of its own."""

    def __init__(self, acquire: Callable[[], lockmod.Guard]) -> None:
        self.guards: list[lockmod.Guard] = []
        self.thread = threading.Thread(target=lambda: self.guards.append(acquire()))
        self.thread.start()

    def guard(self) -> lockmod.Guard:
        self.thread.join(PATIENCE)
        assert self.guards, "the lock was not acquired"
        return self.guards[0]


def test_readers_hold_it_together_and_a_writer_waits_for_all(
    locker: Locker, servers: list[Node], name: str
) -> None:
    before = locker.acquire(name)
    before.release()
    one = locker.acquire(name, shared=True)
    two = locker.try_acquire(name, shared=True)
    assert not one.exclusive and not two.exclusive
    assert one.fence >= before.fence and two.fence >= before.fence
    writer = Waiting(lambda: locker.acquire(name))
    waits(servers, name, 1)
    with pytest.raises(lockmod.HeldError):
        locker.try_acquire(name, shared=True)  # the writer was there before
    one.release()
    assert not writer.guards and all(readers(node, name) == 1 for node in servers)
    two.check()
    two.release()
    with writer.guard() as guard:
        assert guard.exclusive and guard.fence > max(one.fence, two.fence)
    assert not guard.exclusive and not one.exclusive
    with locker.lock(name, shared=True) as late:
        assert late.fence >= guard.fence


def test_a_downgrade_lets_readers_in_and_no_writer(
    locker: Locker, servers: list[Node], name: str
) -> None:
    # A node that an earlier test has started again has a higher floor.
    floor = max(node.run("LOCK.FLOOR", 1) for node in servers)
    assert {node.run("LOCK.FLOOR", floor) for node in servers} == {floor}
    guard = locker.acquire(name)
    waiting = [Waiting(lambda: locker.acquire(name, shared=True)) for _ in range(3)]
    waits(servers, name, 3)
    time.sleep(0.05)
    for told in locker.info(name):
        assert told.waiting_readers == 3
        assert told.first_waiting is not None and 0.05 <= told.first_waiting < 30
    guard.downgrade()
    guard.downgrade()  # stays a reader
    assert not guard.exclusive and 0 < guard.validity <= 10
    fences = {one.guard().fence for one in waiting}
    assert fences == {guard.fence}
    with pytest.raises(lockmod.HeldError):
        locker.try_acquire(name)
    guard.extend()
    guard.release()
    for one in waiting:
        one.guard().release()
    with locker.try_acquire(name) as writer:
        assert writer.fence > guard.fence


def test_whose_lease_has_ended_becomes_no_reader(nodes: list[str], servers: list[Node], name: str) -> None:
    locker = Locker(nodes, ttl=1.5, timeout=0.4, renew=False)
    guard = locker.acquire(name)
    for node in servers:
        node.run("DEL", name)
    with pytest.raises(lockmod.LostError) as lost:
        guard.downgrade()
    assert lost.value.reason == "removed" and not guard.exclusive
    guard = locker.acquire(name)
    guard.release()
    with pytest.raises(lockmod.LostError) as lost:
        guard.downgrade()
    assert lost.value.reason == "released"


def test_a_downgrade_without_a_quorum_is_one_all_the_same(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=10, timeout=0.5, renew=False)
    guard = locker.acquire(name)
    servers[0].pause()
    servers[1].pause()
    with pytest.raises(lockmod.NoQuorumError):
        guard.downgrade()
    assert not guard.exclusive
    guard.check()  # what was valid stays valid
    servers[0].resume()
    servers[1].resume()
    # From here on every extension tells the nodes.
    until("a quorum hears of it", lambda: _is_extended(guard))
    until("all know", lambda: all(readers(node, name) == 1 for node in servers))
    guard.release()


def _is_extended(guard: lockmod.Guard) -> bool:
    try:
        guard.extend()
    except lockmod.NoQuorumError:
        return False
    return True


def test_errors_and_infos_say_who_reads(locker: Locker, nodes: list[str], name: str) -> None:
    other = Locker(nodes, ttl=10, timeout=2, wait=0)
    with locker.lock(name, label="writer-1") as guard:
        with pytest.raises(lockmod.HeldError) as held:
            other.acquire(name, shared=True)
        assert held.value.label == "writer-1" and "for writer-1" in str(held.value)
        assert {(told.readers, told.reader_labels) for told in locker.info(name)} == {(0, ())}
        guard.downgrade()
        with other.acquire(name, shared=True, label="reader-2"):
            with pytest.raises(lockmod.HeldError) as held:
                other.acquire(name)
            assert held.value.label == "writer-1"
            for told in locker.info(name):
                labels = ("writer-1", "reader-2")
                assert (told.state, told.readers, told.reader_labels) == ("held", 2, labels)
                assert (told.label, told.waiters, told.waiting_readers) == ("writer-1", 0, 0)
                assert told.first_waiting is None


def test_several_locks_of_both_kinds(locker: Locker, nodes: list[str], name: str) -> None:
    stock, catalogue = name + ":stock", name + ":catalogue"
    other = Locker(nodes, ttl=10, timeout=2, wait=0)
    guards = locker.acquire_many([stock], shared=[catalogue, stock])
    assert [(guard.name, guard.exclusive) for guard in guards] == [
        (catalogue.encode(), False),
        (stock.encode(), True),
    ]
    with pytest.raises(lockmod.HeldError):
        other.acquire_many([name + ":0"], shared=[catalogue, stock])
    assert {told.state for told in locker.info(name + ":0")} == {"free"}
    assert {told.readers for told in locker.info(catalogue)} == {1}
    for guard in other.acquire_many([], shared=[catalogue]):
        assert not guard.exclusive
        guard.release()
    for guard in guards:
        guard.release()
    # The letters of a string are not names.
    for wrong in ({"names": name}, {"names": [], "shared": name}, {"names": b"ab"}):
        with pytest.raises(lockmod.OptionError, match="a list of names"):
            locker.acquire_many(**wrong)  # type: ignore[arg-type]


def test_nodes_that_forgot_are_given_their_readers_back(
    nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.5, timeout=0.4)
    with locker.lock(name, shared=True) as one, locker.lock(name, shared=True) as two:
        servers[0].run("DEL", name)
        until("both are back", lambda: readers(servers[0], name) == 2)
        one.check()
        two.check()
        with pytest.raises(lockmod.HeldError):
            locker.acquire(name, wait=0)


def test_a_lock_of_readers_is_not_owned_by_the_writer_before_them(
    locker: Locker, servers: list[Node], name: str
) -> None:
    """Readers have the fence of the last writer, by which `owned` recognizes its own lock."""
    lock = RedisLock(locker, name, timeout=20)
    assert lock.acquire() and lock.owned()
    for node in servers:
        node.run("DEL", name)
    with locker.lock(name, shared=True) as guard:
        assert guard.fence == lock.fence
        assert lock.locked() and not lock.owned()


def test_readers_and_writers_in_coroutines(locker: Locker, servers: list[Node], name: str) -> None:
    aio = locker.aio
    shared = locker.lock(name, shared=True)
    inside: list[int] = []

    async def read() -> int:
        async with shared as guard:
            inside.append(guard.fence)
            # All of them are inside at once.
            await until_async("all read", lambda: len(inside) == 8)
            return guard.fence

    async def write() -> int:
        async with await aio.acquire(name) as guard:
            assert guard.exclusive
            await guard.downgrade()
            assert not guard.exclusive
            async with await aio.try_acquire(name, shared=True) as reader:
                assert reader.fence == guard.fence
            return guard.fence

    async def work() -> None:
        fences = await asyncio.gather(*(read() for _ in range(8)))
        assert await write() > max(fences)
        first, second = await aio.acquire_many([name + ":b"], shared=[name + ":a"])
        assert (first.exclusive, second.exclusive) == (False, True)
        await first.release()
        await second.release()

    asyncio.run(work())


def test_readers_behind_a_writer_who_gives_up_come_in(
    locker: Locker, servers: list[Node], name: str
) -> None:
    async def work() -> None:
        aio = locker.aio
        holds = await aio.acquire(name, shared=True)
        writer = asyncio.ensure_future(aio.acquire(name))
        await asyncio.to_thread(waits, servers, name, 1)
        reader = asyncio.ensure_future(aio.acquire(name, shared=True))
        leaves = asyncio.ensure_future(aio.acquire(name, shared=True))
        await asyncio.to_thread(waits, servers, name, 3)
        leaves.cancel()
        await asyncio.to_thread(waits, servers, name, 2)
        writer.cancel()
        for cancelled in (writer, leaves):
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        guard = await asyncio.wait_for(reader, PATIENCE)
        assert guard.fence == holds.fence
        await holds.release()
        await guard.release()
        await aio.settle()
        assert {told.state for told in await aio.info(name)} == {"free"}

    asyncio.run(work())
