"""What users of redis-py's locks rely on, tested on redis-py's own lock and on ours."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from conftest import PATIENCE, Node, until

import lockmod
from lockmod import compat

Make = Callable[..., Any]


@pytest.fixture(params=["redis", "lockmod", "lockmod-quorum"])
def make(request: pytest.FixtureRequest, servers: list[Node]) -> Make:
    """Each test runs on redis-py's lock and on ours, so that they behave alike."""
    clients = [node.client() for node in servers]
    if request.param == "redis":
        return lambda name, **options: redis.lock.Lock(clients[0], name + ":string", **options)
    target = clients if request.param == "lockmod-quorum" else clients[0]
    return lambda name, **options: compat.Lock(target, name + ":" + request.param, **options)


def test_a_lock_is_acquired_and_released(make: Make, name: str) -> None:
    lock, other = make(name, timeout=10), make(name, timeout=10)
    assert not lock.locked() and not lock.owned()
    assert lock.acquire() is True
    assert lock.locked() and lock.owned()
    assert other.locked() and not other.owned()
    assert other.acquire(blocking=False) is False
    start = time.monotonic()
    assert other.acquire(blocking_timeout=0.3) is False
    assert time.monotonic() - start < 5
    lock.release()
    assert other.acquire(blocking=False) is True
    other.release()
    assert not lock.locked()


def test_what_is_not_owned_is_neither_released_nor_extended(make: Make, name: str) -> None:
    lock = make(name, timeout=10)
    for call in (lock.release, lock.reacquire, lambda: lock.extend(5)):
        with pytest.raises(redis.exceptions.LockError) as error:
            call()
        assert not isinstance(error.value, redis.exceptions.LockNotOwnedError)


def test_a_lock_ends_with_its_timeout(make: Make, name: str) -> None:
    lock = make(name, timeout=0.6)
    assert lock.acquire()
    until("it has ended", lambda: not lock.owned() and not lock.locked())
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.extend(5)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.reacquire()
    other = make(name, timeout=10)
    assert other.acquire(blocking=False)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()
    assert other.owned()
    other.release()


def test_an_extension_adds_time_or_replaces_it(make: Make, name: str) -> None:
    lock = make(name, timeout=0.8)
    assert lock.acquire()
    assert lock.extend(1.5) is True
    time.sleep(1.2)
    assert lock.owned(), "0.8 and 1.5"
    assert lock.extend(0.9, replace_ttl=True) is True
    assert lock.reacquire() is True
    until("0.9 is over", lambda: not lock.locked())


def test_a_block_releases_and_says_what_it_could_not(make: Make, name: str) -> None:
    with make(name, timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(redis.exceptions.LockError):  # noqa: SIM117
            with make(name, timeout=10, blocking_timeout=0.05):
                pass
    assert not lock.locked()
    with pytest.raises(redis.exceptions.LockNotOwnedError):  # noqa: SIM117
        with make(name, timeout=0.5) as lock:
            until("it has ended", lambda: not lock.locked())
    with make(name, timeout=0.5, raise_on_release_error=False) as lock:
        until("it has ended", lambda: not lock.locked())


def test_what_a_thread_holds_is_its_own_unless_told_otherwise(make: Make, name: str) -> None:
    seen: list[bool] = []

    def look() -> None:
        try:
            seen.append(lock.owned())
        except AttributeError:
            seen.append(False)  # redis-py stumbles over its own thread-local there

    for is_local in (True, False):
        lock = make(name, timeout=10, thread_local=is_local)
        assert lock.acquire()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(PATIENCE)
        lock.release()
    assert seen == [False, True]


def test_a_lock_whose_object_is_gone_stays_for_its_timeout(make: Make, name: str) -> None:
    lock = make(name, timeout=10)
    assert lock.acquire()
    del lock
    gc.collect()
    assert make(name, timeout=10).acquire(blocking_timeout=0.2) is False


def test_whoever_waits_gets_it(make: Make, name: str) -> None:
    lock, other = make(name, timeout=10, thread_local=False), make(name, timeout=10)
    assert lock.acquire()
    threading.Timer(0.2, lock.release).start()
    assert other.acquire(blocking_timeout=PATIENCE) is True
    other.release()


def test_what_differs_names_the_alternative(servers: list[Node], name: str) -> None:
    client = servers[0].client()
    with pytest.raises(redis.exceptions.LockError, match="renew=True"):
        compat.Lock(client, name)
    with pytest.raises(redis.exceptions.LockError, match="label="):
        compat.Lock(client, name, timeout=1).acquire(token="mine")
    with pytest.raises(redis.exceptions.LockError, match="lockmod.Locker"):
        compat.Lock(object(), name, timeout=1)
    with pytest.raises(redis.exceptions.LockError, match="too short"):
        compat.Lock(client, name, timeout=0.001).acquire()
    servers[0].run("SET", name + ":text", "x")
    with pytest.raises(redis.exceptions.ResponseError):
        compat.Lock(client, name + ":text", timeout=1).acquire()
    servers[2].kill()
    with pytest.raises(redis.exceptions.ConnectionError):
        compat.Lock(servers[2].client(), name, timeout=1).acquire(blocking=False)


def test_a_number_as_a_name_is_its_text(servers: list[Node]) -> None:
    client = servers[0].client()
    for kind in (redis.lock.Lock, compat.Lock):
        client.flushall()
        for number in (5, 2.5):
            lock, same = kind(client, number, timeout=10), kind(client, str(number), timeout=10)
            assert lock.acquire() and not same.acquire(blocking=False), (kind, number)
            lock.release()
    for wrong in (True, None, "", ["a"]):
        with pytest.raises(redis.exceptions.LockError, match="the name is"):
            compat.Lock(client, wrong, timeout=1)  # type: ignore[arg-type]
    with pytest.raises(redis.exceptions.LockError, match="timeout is '5'"):
        compat.Lock(client, "a", timeout="5")  # type: ignore[arg-type]
    with pytest.raises(redis.exceptions.LockError, match="blocking_timeout is '5'"):
        compat.Lock(client, "a", timeout=5).acquire(blocking_timeout="5")  # type: ignore[arg-type]


def test_an_extension_may_be_shorter_than_the_time_for_answers(make: Make, name: str) -> None:
    # "timeout 500ms does not fit into the ttl 500ms", though nobody had set a timeout.
    lock = make(name, timeout=10)
    assert lock.acquire()
    assert lock.extend(0.5, replace_ttl=True) is True
    with pytest.raises((redis.exceptions.LockError, TypeError, redis.exceptions.DataError)):
        lock.extend(None)


def test_an_extension_of_a_renewed_lock_leaves_its_timeout(servers: list[Node], name: str) -> None:
    with compat.Lock(servers[0].client(), name, timeout=4, renew=True) as lock:
        assert lock.extend(0.1, replace_ttl=True) is True
        assert lock.validity > 2


def test_a_lock_that_is_renewed_outlives_its_timeout(servers: list[Node], name: str) -> None:
    with compat.Lock(servers[0].client(), name, timeout=0.8, renew=True, label="job") as lock:
        assert lock.fence >= 1 and 0 < lock.validity < 0.8
        time.sleep(1.5)
        assert lock.owned() and servers[0].holder(name) == "job"


def test_clients_of_every_kind_lead_to_their_server(locker: lockmod.Locker) -> None:
    def url(client: object) -> str:
        return compat._url(client)[0]

    assert compat._locker(locker, 1) is locker
    assert url("redis://a") == "redis://a"
    assert url(redis.Redis(host="a", port=1, db=2)) == "redis://a:1/2"
    assert url(redis.Redis(host="::1", port=1)) == "redis://[::1]:1/0"
    secret = redis.Redis(host="a", username="u@", password="p/:")
    assert url(secret) == "redis://u%40:p%2F%3A@a:6379/0"
    assert url(redis.Redis(host="a", ssl=True)) == "rediss://a:6379/0"
    socket = redis.Redis(unix_socket_path="/run/x", db=3, password="p&")
    assert url(socket) == "unix:///run/x?pass=p%26&db=3"
    assert url(redis.asyncio.Redis(host="a")) == "redis://a:6379/0"
    # A few lockers, however many timeouts there are.
    assert len({id(compat._locker("redis://a", 1 + n / 100)) for n in range(1000)}) <= 3


def test_a_node_that_does_not_tell_has_not_said_no(servers: list[Node], name: str) -> None:
    clients = [node.client() for node in servers]
    lock, other = (compat.Lock(clients, name, timeout=20) for _ in range(2))
    # The first and the last are a quorum; an extension makes the other catch up with their fence.
    for node in (servers[0], servers[2]):
        node.client().execute_command("LOCK.FLOOR", 2**40)
    assert lock.acquire() and lock.reacquire()
    lock._locker.settle()
    servers[0].pause()
    assert lock.owned() and other.locked()
    servers[1].pause()
    for question in (lock.owned, other.locked):
        with pytest.raises(redis.exceptions.ConnectionError, match="timed out"):
            question()
    servers[0].resume()
    servers[1].resume()
    lock.release()


def test_the_interfaces_have_everything_that_those_of_redis_have() -> None:
    for ours, theirs in [
        (compat.Lock, redis.lock.Lock),
        (compat.AsyncLock, redis.asyncio.lock.Lock),
    ]:
        internal = ("lua", "do_", "register", "_")
        for name, member in vars(theirs).items():
            if name.lower().startswith(internal) and name not in ("__init__", "__enter__", "__aenter__"):
                continue
            has = list(inspect.signature(getattr(ours, name)).parameters)
            wants = list(inspect.signature(member).parameters)
            assert has[: len(wants)] == wants, (ours, name)


def test_the_same_in_coroutines(servers: list[Node], name: str) -> None:
    async def work(make: Make) -> None:
        lock, other = make(timeout=10), make(timeout=10)
        assert not await lock.locked() and not await lock.owned()
        assert await lock.acquire() is True
        assert await lock.locked() and await lock.owned() and not await other.owned()
        assert await other.acquire(blocking=False) is False
        assert await other.acquire(blocking_timeout=0.1) is False
        assert await lock.extend(5) is True and await lock.reacquire() is True
        await lock.release()
        with pytest.raises(redis.exceptions.LockError):
            await lock.release()
        async with make(timeout=10) as held:
            assert await held.owned()
            with pytest.raises(redis.exceptions.LockError):
                async with make(timeout=10, blocking_timeout=0.05):
                    pass
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            async with make(timeout=0.5) as held:
                deadline = time.monotonic() + PATIENCE
                while await held.locked() and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                with pytest.raises(redis.exceptions.LockNotOwnedError):
                    await held.extend(5)

    async def both() -> None:
        clients = [redis.asyncio.Redis(port=node.port) for node in servers]
        await work(lambda **options: redis.asyncio.lock.Lock(clients[0], name + ":s", **options))
        await work(lambda **options: compat.AsyncLock(clients[0], name, **options))
        await work(lambda **options: compat.AsyncLock(clients, name + ":q", **options))
        for client in clients:
            await client.aclose()

    asyncio.run(both())
