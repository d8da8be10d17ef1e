"""What users of redis-py's locks rely on, tested on redis-py's own lock and on ours."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.asyncio.sentinel
import redis.lock
import redis.sentinel
from conftest import PATIENCE, SERVER, Node, die_with_parent, until

import lockmod
from lockmod import compat
from lockmod._clients import server

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


def test_a_lock_keeps_its_name_and_its_client(servers: list[Node], name: str) -> None:
    lock = compat.Lock(servers[0].client(), name, timeout=10)
    for attribute in ("name", "redis"):
        kept = getattr(lock, attribute)
        with pytest.raises(AttributeError):
            setattr(lock, attribute, "another")
        assert getattr(lock, attribute) is kept


def test_what_is_not_owned_is_neither_released_nor_extended(make: Make, name: str) -> None:
    lock = make(name, timeout=10)
    for call, said in (
        (lock.release, "^Cannot release a lock that's not owned or is already unlocked.$"),
        (lock.reacquire, "^Cannot reacquire an unlocked lock$"),
        (lambda: lock.extend(5), "^Cannot extend an unlocked lock$"),
    ):
        with pytest.raises(redis.exceptions.LockError, match=said) as error:
            call()
        assert not isinstance(error.value, redis.exceptions.LockNotOwnedError)


def test_a_block_that_does_not_begin_leaves_what_another_thread_has(
    servers: list[Node], name: str
) -> None:
    class Slow(compat.Lock):
        def acquire(self, *given: Any, **options: Any) -> bool:
            other = threading.Thread(target=super().acquire)
            other.start()
            other.join()
            return False

    lock = Slow(servers[0].client(), name, timeout=10, thread_local=False)
    with pytest.raises(redis.exceptions.LockError, match="Unable to acquire"), lock:
        pass
    assert lock.owned()
    lock.release()
    assert not lock.locked()


def test_a_block_that_does_not_begin_leaves_what_another_greenlet_has(
    servers: list[Node], name: str
) -> None:
    """Greenlets of one thread may have one number, but each has a context of its own."""

    class Slow(compat.Lock):
        def acquire(self, *given: Any, **options: Any) -> bool:
            contextvars.Context().run(super().acquire)
            return False

    lock = Slow(servers[0].client(), name, timeout=10)
    with pytest.raises(redis.exceptions.LockError, match="Unable to acquire"), lock:
        pass
    assert lock.owned()
    lock.release()
    assert not lock.locked()


def test_a_block_of_a_task_leaves_what_another_task_has(servers: list[Node], name: str) -> None:
    class Slow(compat.AsyncLock):
        async def acquire(self, *given: Any, **options: Any) -> bool:
            work = super().acquire()
            loop = asyncio.get_running_loop()
            await contextvars.Context().run(loop.create_task, work)
            return False

    async def work() -> None:
        lock = Slow(servers[0].client(), name, timeout=10)
        with pytest.raises(redis.exceptions.LockError, match="Unable to acquire"):
            async with lock:
                pass
        assert await lock.owned()
        await lock.release()
        assert not await lock.locked()

    asyncio.run(work())


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
    with pytest.raises(redis.exceptions.LockError, match="use AsyncLock"):
        compat.Lock(redis.asyncio.Redis(), name, timeout=1)
    with pytest.raises(redis.exceptions.LockError, match="too short"):
        compat.Lock(client, name, timeout=0.001).acquire()
    servers[0].run("SET", name + ":text", "x")
    with pytest.raises(redis.exceptions.ResponseError):
        compat.Lock(client, name + ":text", timeout=1).acquire()


def test_a_refusal_is_the_error_that_redis_py_raises(servers: list[Node], name: str) -> None:
    port = servers[0].port
    servers[0].run("ACL", "SETUSER", "limited", "on", ">secret", "~none", "+@all")
    for password, expected in [
        ("wrong", redis.exceptions.AuthenticationError),
        ("secret", redis.exceptions.NoPermissionError),
    ]:
        client = redis.Redis(port=port, username="limited", password=password)
        for kind in (redis.lock.Lock, compat.Lock):
            with pytest.raises(expected):
                kind(client, name, timeout=1).acquire(blocking=False)
        client.close()


def test_a_password_that_a_server_does_not_ask_for_is_no_obstacle(servers: list[Node], name: str) -> None:
    client = redis.Redis(port=servers[0].port, password="not asked for")
    for kind in (redis.lock.Lock, compat.Lock):
        with kind(client, f"{name}:{kind.__module__}", timeout=1):
            pass
    client.close()


def test_a_question_is_refused_as_an_acquisition_is(servers: list[Node], name: str) -> None:
    # It was a ConnectionError, as if the server were down.
    errors, asked = redis.exceptions, name + ":asked"
    plain = Node(with_module=False)

    def raised(ask: Callable[[], object]) -> type[Exception] | None:
        try:
            ask()
        except errors.RedisError as error:
            return type(error)
        return None

    def kinds(clients: list[redis.Redis], expected: type[Exception]) -> None:
        for target in (clients[0], clients):
            lock, other = (kind(target, asked, timeout=9) for kind in (compat.Lock, compat.AsyncLock))
            assert raised(lambda: lock.acquire(blocking=False)) is expected  # noqa: B023
            assert raised(lock.locked) is expected
            assert raised(lambda: asyncio.run(other.locked())) is expected  # noqa: B023

    def login(**login: str) -> list[redis.Redis]:
        return [redis.Redis(port=node.port, **login) for node in servers]

    for node in servers:
        node.run("ACL", "SETUSER", "limited", "on", ">secret", "~none", "+@all")
    kinds(login(username="limited", password="wrong"), errors.AuthenticationError)
    kinds(login(username="limited", password="secret"), errors.NoPermissionError)
    kinds([redis.Redis(port=plain.port)], errors.ResponseError)
    plain.remove()
    kinds([redis.Redis(port=plain.port)], errors.ConnectionError)
    for node in servers:
        node.run("SET", asked, "x")
    kinds(login(), errors.ResponseError)
    # One of three decides nothing.
    servers[0].run("DEL", asked)
    servers[1].run("DEL", asked)
    assert compat.Lock(login(), asked, timeout=9).locked() is False
    held = compat.Lock(login(), name, timeout=9)
    also = compat.AsyncLock(login(), name + ":also", timeout=9)

    async def ask() -> None:
        await also.acquire()
        for node in servers[1:]:
            node.run("ACL", "SETUSER", "default", "-lock.info")
        await also.owned()

    assert held.acquire()
    try:
        assert raised(lambda: asyncio.run(ask())) is errors.NoPermissionError
        assert raised(held.owned) is errors.NoPermissionError
    finally:
        for node in servers:
            node.run("ACL", "SETUSER", "default", "+@all")


def test_an_extension_is_refused_as_an_acquisition_is(servers: list[Node], name: str) -> None:
    # It was a ConnectionError, as if the server were down.
    server, errors = servers[0], redis.exceptions
    held = compat.Lock(server.client(), name, timeout=5)
    assert held.acquire()
    try:
        server.run("CONFIG", "SET", "lockmod.max-ttl", 10_000)
        for extend in (lambda: held.extend(20), compat.Lock(server.client(), name + ":b", timeout=20).acquire):
            with pytest.raises(errors.ResponseError, match="BADTTL"):
                extend()
        server.run("ACL", "SETUSER", "default", "-lock.extend", "-lock.release")
        for call in (held.reacquire, held.release):
            with pytest.raises(errors.NoPermissionError, match="is refused"):
                call()
    finally:
        server.run("ACL", "SETUSER", "default", "+@all")
        server.run("CONFIG", "SET", "lockmod.max-ttl", 86_400_000)


def test_one_of_the_two_libraries_is_enough() -> None:
    program = """if True:
        import sys, types
        import redis.exceptions
        gone = [name for name in sys.modules if name.split(".")[0] == "redis"]
        valkey = types.ModuleType("valkey.exceptions")
        vars(valkey).update(vars(sys.modules["redis.exceptions"]))
        valkey.LockError = type("LockError", (Exception,), {})
        for name in gone:
            del sys.modules[name]
        sys.modules["redis"] = None
        if sys.argv[1] == "valkey":
            sys.modules["valkey"] = types.ModuleType("valkey")
            sys.modules["valkey.exceptions"] = valkey
        try:
            from lockmod import compat
            print(compat.LockError is valkey.LockError)
        except ModuleNotFoundError as error:
            print(error)
    """
    for library, expected in [("valkey", "True"), ("none", "pip install lockmod[redis]")]:
        asked = [sys.executable, "-c", program, library]
        told = subprocess.run(asked, capture_output=True, text=True, check=True)
        assert told.stdout.strip().endswith(expected), told


def test_a_server_that_is_down_is_told_at_once(servers: list[Node], name: str) -> None:
    # It waited without end, and redis-py raises at once.
    clients = [node.client() for node in servers]
    held = compat.Lock(clients, name, timeout=60)
    assert held.acquire()
    servers[1].kill()
    servers[2].kill()
    for target in (clients, clients[2]):
        for limit in (None, PATIENCE * 10):
            both: list[Callable[[], Any]] = [
                lambda: compat.Lock(target, name, timeout=4).acquire(blocking_timeout=limit),  # noqa: B023
                lambda: asyncio.run(  # noqa: B023
                    compat.AsyncLock(target, name, timeout=4).acquire(blocking_timeout=limit)  # noqa: B023
                ),
            ]
            for acquire in both:
                assert isinstance(failure(acquire), redis.exceptions.ConnectionError)


def failure(do: Callable[[], Any]) -> Exception | None:
    """What it raises, or None if it does not end."""
    seen: list[Exception] = []

    def run() -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001
            seen.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return seen[0] if seen else None


@pytest.mark.parametrize("kind", [compat.Lock, compat.AsyncLock])
def test_a_wait_lasts_until_a_quarantine_is_over(name: str, kind: Any) -> None:
    # It raised at once, and named the time after which the node grants.
    node = Node(forgets=True)

    def acquire(**options: Any) -> Any:
        got = kind(node.client(), name, timeout=1).acquire(**options)
        return asyncio.run(got) if inspect.iscoroutine(got) else got

    try:
        node.kill()
        node.start()
        with pytest.raises(redis.exceptions.ConnectionError, match="in quarantine"):
            acquire(blocking=False)
        with pytest.raises(redis.exceptions.ConnectionError, match="in quarantine"):
            acquire(blocking_timeout=0.1)
        threading.Timer(0.5, lambda: node.run("CONFIG", "SET", "lockmod.quarantine", "no")).start()
        assert acquire(blocking_timeout=PATIENCE) is True
    finally:
        node.remove()


@pytest.mark.parametrize("kind", [redis.asyncio.lock.Lock, compat.AsyncLock])
def test_a_block_does_not_begin_with_a_lease_that_is_over(
    servers: list[Node], name: str, kind: Any
) -> None:
    # The loop was blocked while the lock came, and another held it by the time the block began.
    async def work() -> None:
        client = redis.asyncio.Redis(port=servers[0].port)
        first, second, third = (
            kind(client, f"{name}:{kind.__module__}", timeout=ttl, sleep=0.02)
            for ttl in (PATIENCE, 1, PATIENCE)
        )

        async def run() -> None:
            async with second:
                assert await second.owned() and not await third.acquire(blocking=False)

        await first.acquire()
        running = asyncio.create_task(run())
        await asyncio.sleep(0.1)
        await first.release()
        time.sleep(1.3)
        await running
        await third.acquire(blocking=False)
        await third.release()
        # Nobody else wants it, so it is acquired, although the time to wait is over.
        trying = asyncio.create_task(second.acquire(blocking=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(1.3)
        assert await trying
        await client.aclose()

    asyncio.run(work())


def test_after_a_patch_by_gevent_a_waiter_sleeps_between_its_tries(
    servers: list[Node], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In line it stopped all greenlets, the holder too, until the lock had expired.
    client, slept = servers[0].client(), []
    held = compat.Lock(client, name, timeout=PATIENCE)
    assert held.acquire()

    def sleep(length: float) -> None:
        slept.append(length)
        if len(slept) == 3:
            held.release()

    patched = SimpleNamespace(is_module_patched=lambda module: module == "time")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    monkeypatch.setattr(time, "sleep", sleep)
    waiting = compat.Lock(client, name, timeout=10, sleep=0.25)
    assert waiting.acquire(blocking_timeout=PATIENCE) and slept == [0.25] * 3
    assert not compat.Lock(client, name, timeout=10).acquire(blocking=False) and len(slept) == 3


def test_a_locker_that_is_closed_raises_the_errors_of_redis_py(nodes: list[str], name: str) -> None:
    # Some were lockmod's own.
    locker = lockmod.Locker(nodes, timeout=2)
    kinds = (compat.Lock, compat.AsyncLock)
    lock, other = (kind(locker, f"{name}:{kind.__name__}", timeout=20) for kind in kinds)

    async def both(work: Callable[[], Any]) -> None:
        await other.acquire()
        work()
        for ask in (other.acquire, other.owned, other.locked):
            with pytest.raises(redis.exceptions.ResponseError, match="the locker is closed"):
                await ask()
        await other.release()

    assert lock.acquire()
    asyncio.run(both(locker.close))
    for ask in (lock.acquire, lock.owned, lock.locked, lambda: compat.Lock(locker, name, timeout=20)):
        with pytest.raises(redis.exceptions.ResponseError, match="the locker is closed"):
            ask()
    lock.release()


def test_a_wait_outlasts_servers_that_come_back(servers: list[Node], name: str) -> None:
    client = servers[0].client()
    assert compat.Lock(client, name, timeout=4).acquire()
    seen: list[bool] = []
    waiting = compat.Lock(client, name, timeout=4)
    thread = threading.Thread(target=lambda: seen.append(waiting.acquire()))
    thread.start()
    until("it stands in line", lambda: servers[0].info(name)["waiters"] == 1)
    servers[0].kill()
    servers[0].start()
    thread.join(PATIENCE)
    assert seen == [True]


def test_a_server_that_is_slow_to_answer_is_waited_for(servers: list[Node], name: str) -> None:
    class Slow(lockmod.Locker):
        attempts = 0

        def acquire(self, name: Any, **options: Any) -> lockmod.Guard:
            self.attempts += 1
            if self.attempts > 1:
                return super().acquire(name, **options)
            servers[0].pause()
            try:
                return super().acquire(name, **options)
            finally:
                servers[0].resume()

    locker = Slow(servers[0].url, timeout=0.3)
    assert compat.Lock(locker, name, timeout=4).acquire(blocking_timeout=PATIENCE) is True
    assert locker.attempts > 1


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


def test_errors_name_what_the_user_wrote(servers: list[Node], nodes: list[str], name: str) -> None:
    client = servers[0].client()

    def said(do: Callable[[], object]) -> str:
        with pytest.raises(redis.exceptions.LockError) as error:
            do()
        assert error.value.lock_name == name
        return str(error.value)

    def lock(timeout: float, target: object = client) -> compat.Lock:
        return compat.Lock(target, name, timeout=timeout)

    assert said(lambda: lock(-1)).startswith("timeout is -1: give a number of seconds, 0.03 to 86400")
    said_of = "timeout is '5', of type str: give a number of seconds, 0.03 to 86400"
    assert said(lambda: lock("5")) == said_of  # type: ignore[arg-type]
    # 0.02 told of "the Locker's timeout", and 1e9 of "1.5 s to 86400 s".
    for short in (0.0005, 0.001, 0.02, 0.0299):
        assert said(lambda: lock(short)) == f"timeout {short} s is too short: give 0.03 s to 86400 s"  # noqa: B023
    long = said(lambda: lock(10**9))
    assert long.startswith("timeout ") and long.endswith("give a lockmod.Locker with max_ttl")
    assert "give 0.03 s to 86400 s" in long
    for just in (0.03, 86_400):
        lock(just)
    slow = lockmod.Locker(nodes, timeout=3)
    assert said(lambda: lock(5, slow)).startswith("the Locker's timeout 3 s does not fit into timeout 5 s")
    assert "allow_even_nodes=True" in said(lambda: lock(5, [client, servers[1].client()]))
    for wrong_option, text in [
        ({"blocking_timeout": float("nan")}, "blocking_timeout is nan: give a number of seconds, 0 or more"),
        ({"blocking_timeout": "5"}, "blocking_timeout is '5', of type str: give a number of seconds, 0 or more"),
        ({"label": "x" * 129}, "the label has"),
        ({"label": 5}, "label is 5, of type int: give a str of up to 128 bytes"),
        ({"renew": "no"}, "renew is 'no', of type str: give True or False"),
    ]:
        made: dict[str, Any] = wrong_option
        assert said(lambda: compat.Lock(client, name, timeout=10, **made)).startswith(text)  # noqa: B023
    held = lock(10)
    assert said(lambda: held.acquire(blocking_timeout=float("nan"))).startswith("blocking_timeout is nan")
    assert held.acquire()
    for wrong, text in [
        (-100, "additional_time is -100"),
        ("5", "additional_time is '5', of type str: give a number of seconds, so that the lock has"),
        (None, "additional_time is None: give a number of seconds, so that the lock has some left"),
    ]:
        assert said(lambda: held.extend(wrong)).startswith(text)  # type: ignore[arg-type]  # noqa: B023
    assert said(lambda: held.extend(10**9)).startswith("the lock's new timeout 1010")
    endless = "the lock's new timeout is inf: give a finite number of seconds, 0.02 to 86400"
    assert said(lambda: held.extend(float("inf"))) == endless
    held.release()
    # The time for answers that fitted into the first timeout does not fit into this one.
    held.timeout = 1
    assert held.acquire()
    held.release()
    held.timeout = None
    assert "renew=True" in said(held.acquire)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_hold_the_lock(servers: list[Node], name: str) -> None:
    lock = compat.Lock(servers[0].client(), name, timeout=PATIENCE)
    other = compat.AsyncLock(servers[0].client(), name + ":async", timeout=PATIENCE)
    assert lock.acquire() and asyncio.run(other.acquire())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert lock.locked() and not lock.owned()
            for call in (
                lambda: lock.extend(5),
                # It told of the additional time.
                lambda: lock.extend(-5),
                lambda: lock.reacquire(),
                lambda: lock.release(),
                lambda: asyncio.run(other.extend(-5)),
                lambda: asyncio.run(other.release()),
            ):
                with pytest.raises(redis.exceptions.LockError, match="was forked from"):
                    call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()
    asyncio.run(other.release())


def test_a_lock_that_ended_is_named_in_the_error(make: Make, name: str) -> None:
    lock = make(name, timeout=0.5)
    assert lock.local.token is None
    assert lock.acquire() and isinstance(lock.local.token, bytes)
    until("it has ended", lambda: not lock.locked())
    for call in (lambda: lock.extend(5), lock.reacquire, lock.release):
        with pytest.raises(redis.exceptions.LockNotOwnedError) as error:
            call()
        assert error.value.lock_name == lock.name
    assert lock.local.token is None


def test_a_subclass_that_does_not_initialise_its_base_is_told() -> None:
    class Own(compat.Lock):
        def __init__(self) -> None:
            pass

    # They told of attributes that only this package has.
    for use in (Own.acquire, Own.locked, Own.owned, Own.release, lambda own: own.validity):
        with pytest.raises(RuntimeError, match=r"Own.__init__\(\) has not called super\(\)"):
            use(Own())


def test_a_subclass_whose_methods_would_not_be_called_is_refused() -> None:
    for kind in (compat.Lock, compat.AsyncLock):
        with pytest.raises(TypeError, match="override acquire"):
            type("Own", (kind,), {"do_acquire": lambda self, token: True})
        assert type("Own", (kind,), {"acquire": lambda self: True})


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
        return server(client).url

    assert compat._locker(locker, 1) is locker
    assert url("redis://a") == "redis://a"
    assert url(redis.Redis(host="a", port=1, db=2)) == "redis://a:1/2"
    assert url(redis.Redis(host="a", protocol=3)) == "redis://a:6379/0"
    assert url(redis.Redis(host="::1", port=1)) == "redis://[::1]:1/0"
    secret = redis.Redis(host="a", username="u@", password="p/:")
    assert url(secret) == "redis://u%40:p%2F%3A@a:6379/0"
    provided = redis.UsernamePasswordCredentialProvider("u@", "p")
    assert url(redis.Redis(host="a", credential_provider=provided)) == "redis://u%40:p@a:6379/0"
    assert url(redis.Redis(host="a", ssl=True)) == "rediss://a:6379/0"
    usual: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True, "ssl_ciphers": None}
    assert url(redis.Redis(host="a", ssl=True, **usual)) == "rediss://a:6379/0"
    local = redis.Redis(unix_socket_path="/run/x?", db=3, password="p&")
    assert url(local) == "unix:///run/x%3F?user=default&pass=p%26&db=3"
    for library in (redis, redis.asyncio):
        assert url(library.Redis(host="a")) == "redis://a:6379/0"
        pool = library.BlockingConnectionPool.from_url("rediss://:p@a:5/1?ssl_ca_certs=ca.pem")
        assert server(library.Redis(connection_pool=pool)) == (
            "rediss://default:p@a:5/1",
            ("ca.pem", None, None),
        )
    # A few lockers, however many timeouts there are.
    assert len({id(compat._locker("redis://a", 1 + n / 100)) for n in range(1000)}) <= 3


@pytest.mark.parametrize("library", [redis.sentinel, redis.asyncio.sentinel])
def test_a_client_of_sentinels_leads_to_its_group(library: Any) -> None:
    # It has no host of its own, and locked on localhost:6379.
    def url(more: dict[str, Any], at_sentinels: dict[str, Any] | None = None, **last: Any) -> str:
        places = [("10.9.9.9", 26379), ("::1", 5)]
        group = library.Sentinel(places, sentinel_kwargs=at_sentinels, **more)
        return server(group.master_for("my/master", **last)).url

    places = "10.9.9.9:26379,[::1]:5/my%2Fmaster"
    assert url({}) == f"redis+sentinel://{places}/0"
    assert url({"db": 2}, username="u", password="p@") == f"redis+sentinel://u:p%40@{places}/2"
    eye = {"username": "eye", "password": "s&"}
    login = "sentinel_username=eye&sentinel_password=s%26"
    assert url({}, eye) == f"redis+sentinel://{places}/0?{login}"
    assert url({"ssl": True}, {"ssl": True}) == f"rediss+sentinel://{places}/0"

    group = library.Sentinel([("a", 1)])
    wrong = [
        ("replica", group.slave_for("m")),
        ("differ in TLS", group.master_for("m", ssl=True)),
        ("OwnPool", group.master_for("m", connection_pool_class=own(library.SentinelConnectionPool))),
        ("no Sentinels", library.Sentinel([]).master_for("m")),
        ("force_master_ip", library.Sentinel([("a", 1)], force_master_ip="b").master_for("m")),
        ("OwnPool", own(library.Sentinel)([("a", 1)]).master_for("m")),
    ]
    for said, client in wrong:
        kind = compat.Lock if library is redis.sentinel else compat.AsyncLock
        with pytest.raises(redis.exceptions.LockError, match=said) as error:
            kind(client, "job", timeout=5)
        assert "lockmod.Locker" in str(error.value) and error.value.lock_name == "job"


def test_a_lock_of_a_client_of_sentinels_is_at_the_master(
    servers: list[Node], name: str, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"sentinel monitor mymaster 127.0.0.1 {servers[1].port} 1"
    (tmp_path / "conf").write_text(f"bind 127.0.0.1\nport {port}\ndir {tmp_path}\n{master}\n")
    sentinel = subprocess.Popen(
        [SERVER, tmp_path / "conf", "--sentinel"], stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    try:
        client = redis.sentinel.Sentinel([("127.0.0.1", port)]).master_for("mymaster")
        until("it is known", lambda: answers(client))
        with compat.Lock(client, name, timeout=10, label="job"):
            assert [node.holder(name) for node in servers] == [None, "job", None]
    finally:
        sentinel.kill()
        sentinel.wait()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def own(kind: type) -> Any:
    """A class of the user's own, which may connect to anywhere."""
    return type("OwnPool", (kind,), {"__module__": "mine"})


def test_connections_end_with_the_clients_that_they_are_for(servers: list[Node], name: str) -> None:
    # They stayed until the program ended: one for each client with another login, say.
    node = servers[0]

    def connected() -> set[str]:
        with node.client() as client:
            told: list[dict[str, str]] = client.client_list()
        return {one["id"] for one in told if one["db"] != "0"}

    def hold(client: object) -> None:
        with compat.Lock(client, name, timeout=10):
            pass

    clients = [redis.Redis(port=node.port, db=db) for db in range(1, 9)]
    for client in clients:
        hold(client)
    kept = connected()
    assert len(kept) >= 8
    for client in clients:
        hold(client)
    assert connected() == kept, "each has those that it had"
    del client
    clients.clear()
    gc.collect()
    until("they have ended", lambda: not connected())


def test_clients_that_are_not_understood_are_refused() -> None:
    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            return "user", "password that changes"

    def pool(kind: Any = redis.ConnectionPool, **settings: Any) -> Any:
        return redis.Redis(connection_pool=kind(**settings))

    # As in redis-py.
    assert server(pool(password="p")).url == "redis://default:p@localhost:6379/0"
    wrong = [
        ("credential_provider", redis.Redis(host="a", credential_provider=Provider())),
        ("OwnPool", pool(own(redis.ConnectionPool), host="a")),
        ("OwnPool", pool(host="a", connection_class=own(redis.Connection))),
        ("no host", pool(host="", password="p")),
        ("no path", pool(connection_class=redis.UnixDomainSocketConnection)),
        ("redis_connect_func", redis.Redis(host="a", redis_connect_func=print)),
        ("ssl_ca_data", redis.Redis(host="a", ssl=True, ssl_ca_data="PEM")),
        # They were dropped, and the lock failed as its certificate was checked all the same.
        ("ssl_cert_reqs", redis.Redis(host="a", ssl=True, ssl_cert_reqs="none")),
        ("ssl_cert_reqs", redis.Redis(host="a", ssl=True, ssl_cert_reqs=ssl.CERT_NONE)),
        ("ssl_check_hostname", redis.Redis(host="a", ssl=True, ssl_check_hostname=False)),
        ("ssl_exclude", redis.Redis(host="a", ssl=True, ssl_exclude_verify_flags=[ssl.VERIFY_X509_STRICT])),
        ("no connection_pool", object()),
    ]
    for said, client in wrong:
        with pytest.raises(redis.exceptions.LockError, match=said) as error:
            compat.Lock(client, "job", timeout=5)
        assert "lockmod.Locker" in str(error.value) and error.value.lock_name == "job"
    two = [redis.Redis(host=host, ssl=True, ssl_ca_certs=host) for host in ("a", "b", "c")]
    with pytest.raises(redis.exceptions.LockError, match="differ in their files"):
        compat.Lock(two, "job", timeout=5)


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
