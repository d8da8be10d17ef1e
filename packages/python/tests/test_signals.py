"""Signal handlers that raise, between any two bytecodes of the package."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Iterator

import pytest
from conftest import PATIENCE, Node, until

import lockmod
from lockmod import Locker, compat

PACKAGE = str(Path(lockmod.__file__).parent)


class Interrupt(KeyboardInterrupt):
    """What the handler raises."""


def interrupt() -> None:
    raise Interrupt


def interrupted(
    do: Callable[[], object], place: int, handler: Callable[[], object] = interrupt
) -> str | None:
    """Does it, and calls the handler before the bytecode at this place: a trace function may do
    what a signal handler may do, and at a place that is known. Returns the place, or None if there
    is none."""
    count = 0
    where: str | None = None

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count, where
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "opcode") and where is None:
            if count == place:
                where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {event}"
                handler()
            count += 1
        return trace

    sys.settrace(trace)
    try:
        do()
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    return where


@pytest.fixture
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="see the text of Lock")
@pytest.mark.usefixtures("_without_collection")
@pytest.mark.parametrize("kind", ["lock", "acquire", "acquire_many", "compat"])
def test_a_handler_that_raises_leaves_no_lock_behind(locker: Locker, name: str, kind: str) -> None:
    """The lock, its guards and the locker live on; nothing waits for the garbage collector."""
    names = [name + ":a", name + ":b"]
    lock = locker.lock(names[0])
    kept: list[object] = []

    def block() -> None:
        if kind == "lock":
            with lock as guard:
                kept.append(guard)
        elif kind == "acquire":
            with locker.acquire(names[0]) as guard:
                kept.append(guard)
        elif kind == "compat":
            with compat.Lock(locker, names[0], timeout=PATIENCE * 2) as held:
                kept.append(held)
        else:
            with locker.acquire_many(names) as guards:
                kept.extend([guards, *guards])

    place = 0
    while (where := interrupted(block, place)) is not None:
        place += 1

        def is_free() -> bool:
            return all(told.state == "free" for one in names for told in locker.info(one))

        until(f"it is free after an interrupt at {where}", is_free)
    # It reached the end of the block, too.
    assert place > 50 and kept, place


def test_a_handler_may_do_what_it_interrupts(locker: Locker, servers: list[Node], name: str) -> None:
    """It waited for a lock of the thread that it had interrupted."""
    guards = [locker.acquire(f"{name}:{one}") for one in range(2)]
    done = threading.Event()
    clients = [node.client() for node in servers[:1]]

    def watch(guard: lockmod.Guard) -> None:
        guard.lost.call(lambda reason: None)
        compat.Lock(clients[0], f"{name}:3", timeout=10).locked()

    def work() -> None:
        place = 0
        while interrupted(lambda: watch(guards[0]), place, lambda: watch(guards[1])) is not None:
            place += 1
        assert place > 50, place
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(PATIENCE * 2)


# Coroutines that have not begun when the handler raises, and destructors in which it raises.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", ["cancel", "go on"])
def test_a_handler_that_raises_lets_no_task_hang(locker: Locker, name: str, then: str) -> None:
    """It ends the loop. All tasks end when they are cancelled, as by `asyncio.run`, and when the
    program runs the loop again."""

    async def block(place: int, one: int) -> None:
        async with locker.lock(f"{name}:{place}:{one}"):
            pass

    def at(place: int) -> str | None:
        loop = asyncio.new_event_loop()
        try:
            tasks = [loop.create_task(block(place, one)) for one in range(2)]
            where = interrupted(lambda: loop.run_until_complete(asyncio.wait(tasks)), place)
            for task in tasks if then == "cancel" else []:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
            assert all(task.done() for task in tasks), where
            for task in tasks:
                if not task.cancelled():
                    task.exception()
            return where
        finally:
            loop.close()

    place = 0
    while at(place) is not None:
        place += 1
    assert place > 50, place


# Functions of the beginning and of the end of an asynchronous block.
@pytest.mark.usefixtures("_without_collection")
@pytest.mark.parametrize(
    ("kind", "at", "function"),
    [("lock", "call", each) for each in ("_watch", "_refuse_fork", "end", "_cancelling", "_loss")]
    + [("compat", "call", each) for each in ("keep", "_given_up", "_failing_as")]
    + [("compat", "return", each) for each in ("keep", "_keep", "_given_up")],
)
def test_a_handler_that_raises_leaves_no_lock_of_an_asynchronous_block(
    locker: Locker, name: str, kind: str, at: str, function: str
) -> None:
    """The loop lives on; nothing waits for its end, nor for the garbage collector."""
    raised: list[str] = []
    # It lives on, and would be renewed for as long.
    kept = compat.AsyncLock(locker, name, timeout=PATIENCE * 2, renew=True)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        is_place = code.co_filename.startswith(PACKAGE) and code.co_name == function
        if event == at and is_place and not raised:
            raised.append(function)
            raise Interrupt
        return trace if is_place else None

    async def block() -> None:
        sys.settrace(trace)
        try:
            async with locker.lock(name) if kind == "lock" else kept:
                pass
        finally:
            sys.settrace(None)

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(block())
        # It ends the loop, which goes on: `task` keeps the exception and its frames.
        with pytest.raises(Interrupt):
            loop.run_until_complete(task)

        def is_free() -> bool:
            loop.run_until_complete(asyncio.sleep(0.001))
            return all(told.state == "free" for told in locker.info(name))

        until("it is free", is_free)
        assert raised
    finally:
        loop.close()


def test_a_handler_may_release_what_is_being_extended(nodes: list[str], servers: list[Node], name: str) -> None:
    # The extension did not go on while the handler ran, and the release waited for it for ever.
    guard = Locker(nodes, ttl=8, timeout=1).acquire(name)
    for node in servers:
        node.pause()
    previous = signal.signal(signal.SIGALRM, lambda *_: guard.release())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(lockmod.LockError):
            guard.extend()
    finally:
        signal.signal(signal.SIGALRM, previous)
        for node in servers:
            node.resume()
    assert guard.lost.is_set()


@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_may_fork(locker: Locker, name: str, raises: bool) -> None:
    """A child that went on with the call used the parent's connections, or hung."""
    holder = locker.acquire(name)
    parent = os.getpid()
    children: list[int] = []

    def fork(*_: object) -> None:
        children.append(os.fork())
        if raises and os.getpid() != parent:
            raise Interrupt
        if os.getpid() == parent:
            holder.release()

    previous = signal.signal(signal.SIGALRM, fork)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        guard = locker.acquire(name, wait=PATIENCE)
    except (lockmod.ForkedError, Interrupt) as error:
        os._exit(3 if os.getpid() != parent and isinstance(error, Interrupt) == raises else 4)
    finally:
        signal.signal(signal.SIGALRM, previous)
    ended: list[int] = []

    def has_ended() -> bool:
        child, status = os.waitpid(children[0], os.WNOHANG)
        ended.append(os.waitstatus_to_exitcode(status))
        return child != 0

    until("the child has ended", has_ended)
    assert len(children) == 1 and ended[-1] == 3
    guard.extend()
    guard.release()


def test_a_signal_that_the_program_has_blocked_stays_pending(nodes: list[str], name: str) -> None:
    """Regression: the threads of the package had not blocked it, and so the process was ended."""
    program = f"""if True:
        import os, signal
        from lockmod import Locker

        locker = Locker({nodes!r}, timeout=2)
        with locker.lock({name!r}) as guard:
            guard.lost.call(print)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.sigpending() == {{signal.SIGTERM}}
        assert signal.sigtimedwait([signal.SIGTERM], 0) is not None
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_callback_finds_blocked_what_its_caller_had_blocked(nodes: list[str], name: str) -> None:
    """Processes that it starts begin with the same. What is pending stays so: `sigwait` takes it."""
    told: list[set[Any]] = []
    guard = Locker(nodes, ttl=3, timeout=1, renew=False).acquire(name)
    guard.lost.call(lambda _: told.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        guard.lost.call(lambda _: told.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
        until("the callbacks have run", lambda: len(told) == 2)
        assert signal.sigtimedwait([signal.SIGUSR1], 0) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    expected = [before | {signal.SIGUSR1}, before | {signal.SIGUSR1, signal.SIGUSR2}]
    assert sorted(told, key=len) == expected
