"""Locks from coroutines, on the loop of asyncio and on uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, AsyncIterator, Awaitable, Callable, Coroutine
from unittest import mock

import pytest
import uvloop
from conftest import PATIENCE, Node, until, until_async

import lockmod
from lockmod import Locker

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in a new loop."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        loop = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
        try:
            return loop.run_until_complete(asyncio.wait_for(work, PATIENCE * 2))
        finally:
            loop.close()

    return run


def free(locker: Locker, name: str) -> bool:
    return {told.state for told in locker.info(name)} <= {"free", "reserved"}


def test_tasks_exclude_each_other_and_threads_too(run: Run, locker: Locker, name: str) -> None:
    inside: list[int] = []
    fences: list[int] = []

    def enter(fence: int) -> None:
        inside.append(fence)
        assert len(inside) == 1
        fences.append(fence)

    async def work() -> None:
        for _ in range(3):
            async with locker.lock(name) as guard:
                enter(guard.fence)
                await asyncio.sleep(0)
                guard.check()
                inside.pop()

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(16)))

    def thread() -> None:
        for _ in range(3):
            with locker.lock(name) as guard:
                enter(guard.fence)
                inside.pop()

    threads = [threading.Thread(target=thread) for _ in range(2)]
    for one in threads:
        one.start()
    run(all_of_them())
    for one in threads:
        one.join(PATIENCE)
    assert len(fences) == 54
    assert fences == sorted(set(fences))


def test_everything_there_is(run: Run, locker: Locker, nodes: list[str], name: str) -> None:
    async def work() -> None:
        aio = locker.aio
        async with await aio.acquire(name, label="task") as guard:
            with pytest.raises(lockmod.HeldError) as held:
                await Locker(nodes, timeout=2).aio.try_acquire(name)
            assert held.value.label == "task"
            await guard.extend(60)
            assert guard.validity > 50
            assert {told.label for told in await aio.info(name)} == {"task"}
            assert await guard.lost.wait(0.01) is None
        assert await guard.lost.wait() == "released"
        guards = await aio.acquire_many([name + ":b", name + ":a"])
        assert len(guards) == 2
        for one in guards:
            await one.release()
        assert {vote.vote for vote in await aio.settle()} == {"confirmed"}

    run(work())


def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing(
    run: Run, locker: Locker, servers: list[Node], name: str
) -> None:
    async def work() -> None:
        guard = await locker.aio.acquire(name)
        waiting = asyncio.ensure_future(locker.aio.acquire(name))
        await until_async("it stands in line", lambda: servers[0].info(name)["waiters"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until_async(
            "the line is empty", lambda: all(node.info(name)["waiters"] == 0 for node in servers)
        )
        await guard.release()
        assert free(locker, name)

    run(work())


def test_a_cancellation_at_any_moment_leaves_nothing(run: Run, locker: Locker, name: str) -> None:
    """Before it is sent, on its way, in the turn of the loop in which it arrives, and after."""
    outcomes: list[str] = []

    async def work() -> None:
        for _ in range(150):
            start = time.perf_counter()
            task = asyncio.ensure_future(locker.aio.acquire(name))
            # As long as an acquisition takes, more or less.
            pause = random.uniform(0, 0.002)
            while time.perf_counter() - start < pause:
                await asyncio.sleep(0)
            task.cancel()
            try:
                guard = await task
                outcomes.append("acquired")
                await guard.release()
            except asyncio.CancelledError:
                outcomes.append("cancelled")
            # The one before leaves nothing in the way for long.
            async with locker.lock(name, wait=PATIENCE):
                pass
        await locker.aio.settle()
        async with await locker.aio.try_acquire(name):
            pass

    run(work())
    assert outcomes.count("cancelled") > 5


def test_a_result_that_arrives_for_a_cancelled_task_is_given_back(
    run: Run, locker: Locker, name: str
) -> None:
    async def work() -> None:
        task = asyncio.ensure_future(locker.aio.acquire(name))
        await asyncio.sleep(0)
        # The result arrives while the loop is blocked; the task is cancelled before it is looked at.
        until("it is granted", lambda: locker.info(name)[0].state == "held")
        time.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await locker.aio.settle()
        (await asyncio.wait_for(locker.aio.try_acquire(name), PATIENCE)).fence
        # And a task that another cancels whose result has arrived together with its own.
        tasks: list[asyncio.Task[Any]] = []

        async def first_cancels_the_other(place: int) -> int:
            guard = await locker.aio.acquire(f"{name}:{place}")
            tasks[1 - place].cancel()
            await guard.release()
            return guard.fence

        tasks += [asyncio.ensure_future(first_cancels_the_other(place)) for place in range(2)]
        await arrived(locker, [f"{name}:0", f"{name}:1"])
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(type(one).__name__ for one in outcomes) == ["CancelledError", "int"]
        await locker.aio.settle()
        assert free(locker, f"{name}:0") and free(locker, f"{name}:1")

    run(work())


def test_a_lock_that_arrives_for_a_cancelled_task_needs_no_further_turn_of_the_loop(
    run: Run, locker: Locker, name: str
) -> None:
    # The loop did not turn again: the lock was held and renewed, and nobody had it.
    is_free: list[bool] = []

    async def cancelled() -> None:
        try:
            await locker.aio.acquire(name)
        except asyncio.CancelledError:
            # The loop is blocked from here on.
            with locker.acquire(name, wait=PATIENCE):
                is_free.append(True)
            raise

    async def work() -> None:
        task = asyncio.ensure_future(cancelled())
        await arrived(locker, [name])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Nor is it granted later, if the loop is blocked as soon as the task is cancelled.
        with locker.acquire(name):
            waiting = asyncio.ensure_future(locker.aio.acquire(name))
            await until_async("it waits", lambda: locker.info(name)[0].waiters == 1)
            waiting.cancel()
        with locker.acquire(name, wait=PATIENCE):
            is_free.append(True)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(work())
    assert is_free == [True, True]


async def arrived(locker: Locker, names: list[str]) -> None:
    """Blocks the loop, once the tasks have begun, until their results wait for it."""
    for _ in range(2):
        await asyncio.sleep(0)
    for one in names:
        until("it is granted", lambda one=one: locker.info(one)[0].state == "held")
    time.sleep(0.05)


def is_in_take() -> bool:
    """Whether results are being taken now, further out on the stack."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_take":
            return True
    return False


def started(kind: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    loop = asyncio.get_running_loop()
    if kind == "eager":
        make: Any = asyncio.Task
        return make(work, loop=loop, eager_start=True)
    if kind == "in_python":
        # A task as a program has it that replaces those in C.
        return getattr(asyncio.tasks, "_PyTask")(work, loop=loop)
    loop.set_debug(kind == "debug")
    return loop.create_task(work)


@pytest.mark.parametrize("kind", ["plain", "debug", "eager", "in_python"])
def test_every_kind_of_task_gets_its_own_results(
    run: Run, locker: Locker, name: str, kind: str
) -> None:
    if kind == "eager" and sys.version_info < (3, 12):
        pytest.skip("this Python has no eager tasks")
    told: list[int] = []
    label: ContextVar[str] = ContextVar("label", default="")

    async def work(place: int) -> None:
        label.set(f"task {place}")
        for _ in range(5):
            guard = await locker.aio.acquire(f"{name}:{place}", label=label.get())
            assert label.get() == f"task {place}"
            # A program may make the loop turn inside a task, as nest_asyncio allows.
            assert not is_in_take()
            this = asyncio.current_task()
            assert this is tasks[place]
            with pytest.raises(lockmod.HeldError, match=label.get()):
                await locker.aio.try_acquire(f"{name}:{place}")
            await guard.release()
            told.append(place)

    tasks: list[asyncio.Task[None]] = []

    async def all_of_them() -> None:
        tasks.extend(started(kind, work(place)) for place in range(4))
        await asyncio.gather(*tasks)
        # And one that is alone.
        tasks[:] = [started(kind, work(0))]
        await tasks[0]

    run(all_of_them())
    assert sorted(told) == [0] * 10 + [1] * 5 + [2] * 5 + [3] * 5


def test_an_error_of_one_task_stops_no_other(locker: Locker, name: str) -> None:
    """Not even one that ends the loop. What the others start is sent."""
    loop = asyncio.new_event_loop()
    went_on: list[int] = []

    async def work(place: int) -> None:
        guard = await locker.aio.acquire(f"{name}:{place}")
        went_on.append(place)
        await guard.release()
        raise (ZeroDivisionError, SystemExit, KeyboardInterrupt)[place]

    async def work_that_stops(place: int) -> None:
        guard = await locker.aio.acquire(f"{name}:{place}")
        went_on.append(place)
        if place > 0:
            raise (SystemExit, KeyboardInterrupt)[place - 1]
        await guard.release()

    try:
        for one in (work, work_that_stops):
            went_on.clear()
            tasks = [loop.create_task(one(place)) for place in range(3)]
            names = [f"{name}:{place}" for place in range(3)]
            stopped: list[BaseException] = []

            def turn() -> None:
                try:
                    loop.run_until_complete(asyncio.sleep(0.001))
                except (SystemExit, KeyboardInterrupt) as error:
                    stopped.append(error.with_traceback(None))

            # The first of them may go on before all results have arrived.
            arriving = loop.create_task(arrived(locker, names))
            all_tasks = [*tasks, arriving]
            until("all have ended", lambda: turn() or all(task.done() for task in all_tasks))
            assert {type(error) for error in stopped} == {SystemExit, KeyboardInterrupt}
            assert sorted(went_on) == [0, 1, 2]
            stopped.clear()
            for task in tasks:
                task.exception()
            del tasks, task, all_tasks, arriving
            turn()
            gc.collect()
            until("all are free", lambda: all(free(locker, one) for one in names))
    finally:
        loop.close()


def test_a_signal_that_cancels_a_task_at_any_moment_lets_it_not_hang(
    locker: Locker, name: str
) -> None:
    """As the handler of `asyncio.run` does. (One that raises: see test_signals.py.)"""

    async def turns() -> None:
        for turn in range(10_000):
            async with locker.lock(f"{name}:{turn % 7}", wait=PATIENCE):
                pass

    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[None]] = []
    before = signal.signal(signal.SIGALRM, lambda *_: tasks[0].cancel() and None)
    try:
        for _ in range(200):
            tasks[:] = [loop.create_task(turns())]
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
            loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
            assert tasks[0].cancelled()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loop.close()
    for place in range(7):
        locker.acquire(f"{name}:{place}", wait=PATIENCE).release()


def test_a_block_is_cancelled_when_its_lease_is_lost(
    run: Run, nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)

    async def work() -> str:
        done = "nothing"
        try:
            async with locker.lock(name):
                for node in servers:
                    node.run("DEL", name)
                done = "begun"
                await asyncio.sleep(PATIENCE)
                done = "ended"
        except lockmod.LostError as lost:
            assert lost.reason == "removed"
            # The task goes on as if nothing had been cancelled.
            await asyncio.sleep(0.01)
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None and task.cancelling() == 0
        return done

    assert run(work()) == "begun"


def test_a_block_that_ends_in_the_moment_of_the_loss_ends_with_the_error(
    run: Run, nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)

    async def work() -> None:
        with pytest.raises(lockmod.LostError):
            async with locker.lock(name) as guard:
                for node in servers:
                    node.run("DEL", name)
                until("it is lost", guard.lost.is_set)
        with pytest.raises(ZeroDivisionError):
            async with locker.lock(name) as guard:
                for node in servers:
                    node.run("DEL", name)
                until("it is lost", guard.lost.is_set)
                raise ZeroDivisionError
        await asyncio.sleep(0.05)

    run(work())


def test_a_cancellation_by_another_is_not_taken_for_a_loss(
    run: Run, locker: Locker, name: str
) -> None:
    async def work() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with locker.lock(name):
                entered.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.ensure_future(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert free(locker, name)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(hold(), 0.1)
        await locker.aio.settle()
        assert free(locker, name)

    run(work())


def test_a_block_may_end_in_another_task_than_it_began_in(
    run: Run, locker: Locker, name: str
) -> None:
    # It ended with a KeyError, and the lock stayed held.
    async def work() -> None:
        stack = AsyncExitStack()
        guard = await asyncio.ensure_future(stack.enter_async_context(locker.lock(name)))
        assert not guard.lost
        await stack.aclose()
        assert await guard.lost.wait(0) == "released"
        readers = locker.lock(name, shared=True)
        stacks = [AsyncExitStack(), AsyncExitStack()]
        enter = [asyncio.ensure_future(stack.enter_async_context(readers)) for stack in stacks]
        guards = await asyncio.gather(*enter)
        with pytest.raises(RuntimeError, match="with locker.acquire"):
            await stacks[0].aclose()
        assert not any(guard.lost for guard in guards)
        await stacks[1].aclose()
        assert all(guard.lost for guard in guards)
        await locker.aio.settle()
        assert free(locker, name)

    run(work())


def test_a_statement_ends_its_own_block_in_any_order(run: Run, locker: Locker, name: str) -> None:
    readers = locker.lock(name, shared=True)

    async def hold() -> AsyncIterator[lockmod.AsyncGuard]:
        async with readers as guard:
            yield guard

    async def here(step: Awaitable[Any]) -> Any:
        return await step

    async def elsewhere(step: Awaitable[Any]) -> Any:
        return await asyncio.ensure_future(here(step))

    async def work() -> None:
        for begin in (here, elsewhere):
            for end in (here, elsewhere):
                blocks = [hold(), hold(), hold()]
                guards = [await begin(block.__anext__()) for block in blocks]
                for place, block in enumerate(blocks):
                    with pytest.raises(StopAsyncIteration):
                        await end(block.__anext__())
                    assert [bool(guard.lost) for guard in guards] == [at <= place for at in range(3)]

    run(work())


def test_what_another_library_runs_is_told_what_it_needs(locker: Locker, name: str) -> None:
    # As trio does, which has no loop of asyncio.
    with pytest.raises(RuntimeError, match="^no running event loop: .* need asyncio, or uvloop$"):
        locker.aio.acquire(name).send(None)


def test_a_guard_may_have_a_block_in_another(run: Run, nodes: list[str], servers: list[Node], name: str) -> None:
    # The loss ended it with a CancelledError, and a cancellation was left.
    locker = Locker(nodes, ttl=1.2, timeout=0.4)

    async def work() -> None:
        for held in (await locker.aio.acquire(name), await locker.aio.acquire_many([name + ":2"])):
            with pytest.raises(lockmod.LostError) as lost:
                async with held:
                    async with held:
                        for node in servers:
                            node.run("DEL", name, name + ":2")
                        await asyncio.sleep(PATIENCE)
            assert lost.value.reason == "removed"
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None and task.cancelling() == 0
            await asyncio.sleep(0)

        # In two tasks, each block ends for itself.
        shared = await locker.aio.acquire(name)
        begun = [asyncio.Event(), asyncio.Event()]

        async def hold(place: int) -> None:
            async with shared:
                begun[place].set()
                await asyncio.sleep(PATIENCE)

        tasks = [asyncio.ensure_future(hold(place)) for place in (0, 1)]
        for event in begun:
            await event.wait()
        for node in servers:
            node.run("DEL", name)
        for task in tasks:
            with pytest.raises(lockmod.LostError):
                await task

    run(work())


def test_an_acquisition_counts_as_a_coroutine_function(locker: Locker) -> None:
    # A mock of one returned no awaitable.
    mocked = mock.create_autospec(locker.aio)
    for method in ("acquire", "try_acquire", "acquire_many", "info"):
        assert asyncio.iscoroutinefunction(getattr(mocked, method)), method
        if sys.version_info >= (3, 12):
            assert inspect.iscoroutinefunction(getattr(locker.aio, method))


def test_a_loss_cancels_no_other_task_than_the_one_that_began(
    run: Run, nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)

    async def work() -> None:
        stack = AsyncExitStack()
        guard = await asyncio.ensure_future(stack.enter_async_context(locker.lock(name)))
        for node in servers:
            node.run("DEL", name)
        assert await guard.lost.wait(PATIENCE) == "removed"
        with pytest.raises(lockmod.LostError):
            await stack.aclose()
        await asyncio.sleep(0)

    run(work())


def test_the_end_of_a_block_gives_several_locks_back(
    run: Run, nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)
    names = [name + ":a", name + ":b"]

    async def work() -> None:
        with pytest.raises(ZeroDivisionError):
            async with await locker.aio.acquire_many(names) as guards:
                assert [guard.name.decode() for guard in guards] == names
                raise ZeroDivisionError
        await locker.aio.settle()
        assert all(free(locker, one) for one in names)
        # The loss of one, or of both, stops the block.
        for removed in (names[:1], names):
            with pytest.raises(lockmod.LostError):
                async with await locker.aio.acquire_many(names):
                    for node in servers:
                        node.run("DEL", *removed)
                    await asyncio.sleep(PATIENCE)
            await locker.aio.settle()
            assert all(free(locker, one) for one in names)
        # The task was not cancelled by anyone else.
        await asyncio.sleep(0)

    run(work())


def test_a_guard_whose_lease_has_ended_begins_no_block(run: Run, locker: Locker, name: str) -> None:
    async def work() -> None:
        guard = await locker.aio.acquire(name)
        async with guard:
            pass
        with pytest.raises(lockmod.LostError):
            async with guard:
                raise AssertionError("the block has begun")

    run(work())


def test_what_nobody_would_await_is_refused_as_a_callback(run: Run, locker: Locker, name: str) -> None:
    async def forgotten(reason: str) -> None:
        raise AssertionError(reason)

    async def work() -> None:
        async with locker.lock(name) as guard:
            for wrong in (None, 5, forgotten):
                with pytest.raises(lockmod.OptionError, match="the callback is"):
                    guard.lost.call(wrong)  # type: ignore[arg-type]

    run(work())


def test_the_lock_outlives_a_loop_that_is_blocked(
    run: Run, nodes: list[str], servers: list[Node], name: str
) -> None:
    locker = Locker(nodes, ttl=1.2, timeout=0.4)

    async def work() -> None:
        async with locker.lock(name) as guard:
            time.sleep(4)
            guard.check()
            assert servers[0].info(name)["held_for_ms"] >= 4_000
        # And a loss is reported as soon as the loop is no longer blocked.
        told: list[float] = []
        guard = await locker.aio.acquire(name)
        guard.lost.call(lambda reason: told.append(time.monotonic()))
        for node in servers:
            node.pause()
        time.sleep(2)
        awake = time.monotonic()
        assert guard.lost
        await until_async("it is told", lambda: told)
        assert told[0] - awake < 0.5
        for node in servers:
            node.resume()

    run(work())


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_callback_that_raises_keeps_no_result_from_others(
    run: Run, nodes: list[str], name: str, error: type[BaseException]
) -> None:
    """All results that a blocked loop missed are taken in one turn."""
    locker = Locker(nodes, ttl=0.5, renew=False)
    told: list[str] = []
    reported: list[object] = []
    waits: list[asyncio.Task[str | None]] = []

    def fail(reason: str) -> None:
        told.append(reason)
        raise error

    async def begin() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(type(context["exception"]))
        )
        guards = [await locker.aio.acquire(f"{name}:{number}") for number in range(4)]
        for guard in guards:
            guard.lost.call(fail)
            waits.append(asyncio.ensure_future(guard.lost.wait()))
            guard.lost.call(fail)
        await asyncio.sleep(0)
        until("all are lost", lambda: all(guard.lost for guard in guards))
        until("it is told of the last", lambda: guards[-1].lost._lease.lost(PATIENCE))
        assert await asyncio.gather(*waits) == ["expired"] * 4
        await until_async("all callbacks have run", lambda: len(told) == 8)

    if error is SystemExit:
        # It ends the loop, as in a callback of `call_soon`; what was taken with it is not lost.
        loop = asyncio.new_event_loop()
        task = loop.create_task(begin())
        ends = 0
        while not task.done():
            try:
                loop.run_until_complete(task)
            except SystemExit:
                ends += 1
        task.result()
        loop.close()
        assert 0 < ends <= 8 and not reported
    else:
        run(begin())
        assert reported == [error] * 8


def test_a_lock_serves_one_loop_after_the_other_and_several_at_once(
    run: Run, locker: Locker, name: str
) -> None:
    lock = locker.lock(name)
    fences: list[int] = []

    async def work() -> None:
        async with lock as guard:
            fences.append(guard.fence)

    run(work())
    run(work())
    threads = [threading.Thread(target=run, args=(work(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(set(fences)) == 6


def test_a_lock_is_given_back_from_another_loop_than_the_one_that_acquired_it(
    run: Run, locker: Locker, name: str
) -> None:
    # The answer was brought to the loop that was gone, so the release waited forever.
    guard = run(locker.aio.acquire(name))

    async def release() -> None:
        await guard.extend()
        await guard.release()

    run(release())
    assert free(locker, name)


def test_what_arrives_when_the_loop_is_gone_is_given_back(
    run: Run, locker: Locker, name: str
) -> None:
    async def leave_waiting() -> None:
        task = asyncio.ensure_future(locker.aio.acquire(name, wait=PATIENCE))
        await until_async("it waits", lambda: locker.info(name)[0].waiters == 1)
        # So that no warning about a forgotten task is logged.
        setattr(task, "_log_destroy_pending", False)

    with locker.lock(name):
        run(leave_waiting())
        gc.collect()
    with locker.lock(name, wait=PATIENCE) as guard:
        guard.check()


@pytest.mark.parametrize(
    ("new_loop", "arrives"),
    [
        # uvloop turns once more.
        (asyncio.new_event_loop, "in its last turn"),
        (asyncio.new_event_loop, "before it is closed"),
        (uvloop.new_event_loop, "before it is closed"),
        (asyncio.new_event_loop, "later"),
        (uvloop.new_event_loop, "later"),
    ],
)
def test_what_arrives_for_a_task_that_outlives_its_loop_is_given_back(
    new_loop: Callable[[], asyncio.AbstractEventLoop], locker: Locker, name: str, arrives: str
) -> None:
    """Regression: the lock was held, and renewed, for as long as anything referred to the task."""
    kept: list[asyncio.Future[lockmod.AsyncGuard]] = []
    held = locker.acquire(name)

    def give() -> None:
        held.release()
        until("the task has the lock", lambda: locker.info(name)[0].waiters == 0)

    async def leave_waiting() -> None:
        kept.append(asyncio.ensure_future(locker.aio.acquire(name, wait=PATIENCE)))
        await until_async("it waits", lambda: locker.info(name)[0].waiters == 1)
        # So that no warning about a forgotten task is logged.
        setattr(kept[0], "_log_destroy_pending", False)
        if arrives == "in its last turn":
            give()

    loop = new_loop()
    loop.run_until_complete(leave_waiting())
    if arrives == "before it is closed":
        give()
    loop.close()
    if arrives == "later":
        held.release()
    assert not kept[0].done()
    with locker.lock(name, wait=PATIENCE) as guard:
        guard.check()


def test_calls_are_sent_although_the_loop_forgets_what_it_is_to_call(
    locker: Locker, name: str
) -> None:
    """A signal handler that raises between two callbacks makes the loop forget one."""

    class Forgetful(asyncio.SelectorEventLoop):
        has_forgotten = False

        def call_soon(self, callback: Any, *args: Any, **given: Any) -> asyncio.Handle:
            handle = super().call_soon(callback, *args, **given)
            if getattr(callback, "__name__", "") == "flush" and not self.has_forgotten:
                self.has_forgotten = True
                handle.cancel()
            return handle

    async def work() -> None:
        tasks = [locker.aio.acquire(f"{name}:{number}") for number in range(4)]
        for guard in await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE):
            await guard.release()

    with contextlib.closing(Forgetful()) as loop:
        loop.run_until_complete(work())
        assert loop.has_forgotten


def test_a_loop_that_has_ended_leaves_no_memory_behind() -> None:
    """Regression: the port of each loop left 128 bytes, which no collector of Python sees."""
    program = """if True:
        import gc, resource, select
        from lockmod import Locker, _lockmod

        def memory():
            gc.collect()
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        def rounds(count):
            for _ in range(count):
                _lockmod.Port()
                port = _lockmod.Port()
                core.info(b"name", port)
                port.flush()
                select.select([port.fileno()], [], [])
                port.take()

        core = Locker("redis://127.0.0.1:1")._core
        rounds(5_000)
        before = memory()
        rounds(40_000)
        print(memory() - before)
        """
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(told.stdout) < 1_500_000, told.stdout


def test_a_loop_is_asked_to_flush_again_if_it_was_not_asked(locker: Locker, name: str) -> None:
    """Regression: calls without a flush came before one that needed none, whose task then hung."""
    port = lockmod._lockmod.Port()

    def start() -> bool:
        locker._core.info(name.encode(), port)
        return port.needs_flush()

    assert [start() for _ in range(6)] == [True, True, False, True, False, False]
    port.flush()
    # Exceptions came before these two could ask.
    for _ in range(2):
        locker._core.info(name.encode(), port)
    assert [start() for _ in range(4)] == [True, False, False, True]
    port.leave()
    assert start()


def test_the_wrong_block_leaves_a_guard_as_it_was(run: Run, locker: Locker, name: str) -> None:
    """Regression: it released the lock."""

    async def wrong(held: Any, is_sync: bool) -> str:
        with pytest.raises(TypeError) as wrong:
            if is_sync:
                async with held:
                    pass
            else:
                with held:
                    pass
        return str(wrong.value)

    async def work() -> None:
        names = [name + ":b", name + ":c"]
        one, many = locker.acquire(name), locker.acquire_many(names)
        for held in (one, many):
            assert "this guard is for `with`" in await wrong(held, is_sync=True)
        with one, many:
            for each in (one, *many):
                each.check()
        aone, amany = await locker.aio.acquire(name), await locker.aio.acquire_many(names)
        for held in (aone, amany):
            assert "is for `async with`" in await wrong(held, is_sync=False)
        async with aone, amany:
            for each in (aone, *amany):
                each.check()

    run(work())


def test_the_wrong_block_keeps_no_lock_that_nobody_else_keeps(
    run: Run, locker: Locker, name: str
) -> None:
    """Not even while its error is kept."""
    errors: list[TypeError] = []

    async def one() -> None:
        async with locker.acquire(name, wait=PATIENCE):  # type: ignore[attr-defined]
            pass

    async def many() -> None:
        async with locker.acquire_many([name, name + ":2"]):  # type: ignore[attr-defined]
            pass

    async def one_of_aio() -> None:
        with await locker.aio.acquire(name):  # type: ignore[attr-defined]
            pass

    async def many_of_aio() -> None:
        with await locker.aio.acquire_many([name, name + ":2"]):  # type: ignore[attr-defined]
            pass

    async def work() -> None:
        for wrong in (one, many, one_of_aio, many_of_aio):
            try:
                await wrong()
            except TypeError as error:
                errors.append(error)
            # The result of a call lives until its task pauses.
            await asyncio.sleep(0)

    gc.disable()
    try:
        run(work())
        assert len(errors) == 4
        until("they are free", lambda: free(locker, name) and free(locker, name + ":2"))
    finally:
        gc.enable()


def test_a_missing_await_or_the_wrong_block_is_named(run: Run, locker: Locker, name: str) -> None:
    async def misuse(what: Any, kind: type[Exception], says: str) -> None:
        with pytest.raises(kind, match=says):
            await what()
        # The result of a call lives until its task pauses.
        await asyncio.sleep(0)

    async def blocks() -> None:
        async def with_guard() -> None:
            with await locker.aio.acquire(name):  # type: ignore[attr-defined]
                pass

        async def with_guards() -> None:
            with await locker.aio.acquire_many([name]):  # type: ignore[attr-defined]
                pass

        async def with_coroutine() -> None:
            with locker.aio.acquire(name):  # type: ignore[attr-defined]
                pass

        async def async_with_coroutine() -> None:
            async with locker.aio.acquire(name):  # type: ignore[attr-defined]
                pass

        async def async_with_guard() -> None:
            async with locker.acquire(name):  # type: ignore[attr-defined]
                pass

        async def without_await() -> None:
            asking = locker.aio.acquire(name)
            try:
                asking.fence  # type: ignore[attr-defined]
            finally:
                asking.close()

        await misuse(with_guard, TypeError, "is for `async with`, not `with`")
        await misuse(with_guards, TypeError, "is for `async with`, not `with`")
        await misuse(with_coroutine, TypeError, "a coroutine is not a block: write .*await locker.aio.acquire")
        await misuse(async_with_coroutine, TypeError, "a coroutine is not a block")
        await misuse(async_with_guard, TypeError, "this guard is for `with`")
        await misuse(without_await, AttributeError, "has no 'fence', the guard has: write await locker.aio.acquire")
        # It is a coroutine for everything else, and nothing of the misuse is held.
        task = asyncio.create_task(locker.aio.acquire(name), name="asks")
        assert "AsyncLocker.acquire" in repr(task)
        await (await asyncio.wait_for(task, PATIENCE)).release()
        for guard in await asyncio.gather(locker.aio.try_acquire(name), locker.aio.acquire(f"{name}:2")):
            await guard.release()

    run(blocks())


def test_a_guard_that_a_task_forgets_after_a_failed_call_is_released_at_once(
    run: Run, locker: Locker, name: str
) -> None:
    """Regression: the error and the task's frames referred to each other, until a collection."""
    held, own = name + ":held", name + ":own"

    async def block() -> None:
        async with locker.lock(held, wait=0):
            raise AssertionError("it is held")

    shapes: list[Callable[[], Awaitable[Any]]] = [
        lambda: locker.aio.acquire(held, wait=0),
        lambda: locker.aio.try_acquire(held),
        lambda: locker.aio.acquire_many([held, own + ":2"], wait=0),
        lambda: asyncio.wait_for(locker.aio.acquire(held, wait=PATIENCE), 0.1),
        lambda: asyncio.ensure_future(locker.aio.acquire(held, wait=0)),
        lambda: asyncio.gather(locker.aio.acquire(held, wait=0)),
        lambda: asyncio.shield(locker.aio.try_acquire(held)),
        block,
    ]

    async def fail(shape: Callable[[], Awaitable[Any]]) -> None:
        guard = await locker.aio.acquire(own, wait=0)
        with contextlib.suppress(lockmod.HeldError, asyncio.TimeoutError):
            await shape()
            raise AssertionError(guard)

    async def all_of_them() -> None:
        for shape in shapes:
            await asyncio.create_task(fail(shape))
            await until_async("it is released", lambda: free(locker, own))

    gc.collect()
    gc.disable()
    try:
        with locker.lock(held):
            run(all_of_them())
    finally:
        gc.enable()
