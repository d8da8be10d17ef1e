"""Wrong calls of everything that is public: their errors name what users know."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from typing import Any, Callable, Iterator

import pytest
from conftest import Node

import lockmod
from lockmod import Locker, OptionError, compat

# What begins with one underscore is not for users: `_Held`, but not `__init__`.
INNER = re.compile(r"(?<!\w)_(?!_)\w+")

# What a program gets, and does not make.
MADE = {
    lockmod.AsyncGuard: "`await locker.aio.acquire(name)` returns one",
    lockmod.AsyncGuards: "`await locker.aio.acquire_many(names)` returns them",
    lockmod.AsyncLocker: "`aio` of a Locker is one",
    lockmod.AsyncLost: "`lost` of an AsyncGuard is one",
    lockmod.Guard: "`acquire(name)` of a Locker returns one",
    lockmod.Guards: "`acquire_many(names)` of a Locker returns them",
    lockmod.Lock: "`lock(name)` of a Locker returns one",
    lockmod.Lost: "`lost` of a Guard is one",
}
CLASSES = [
    item
    for module in (lockmod, compat)
    for item in (getattr(module, name) for name in module.__all__)
    if isinstance(item, type)
]
WRONG_ARGUMENTS: list[tuple[tuple[object, ...], dict[str, Any]]] = [
    ((), {}),
    ((5,), {}),
    ((object(),) * 20, {}),
    ((), {"bogus": 1}),
]


async def said(call: Callable[[], Any]) -> str:
    """The error of a call, or nothing."""
    try:
        done = call()
        if inspect.isawaitable(done):
            await asyncio.wait_for(done, 5)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: str(kind.__name__))
def test_what_a_program_gets_is_not_made_by_its_class(kind: Any, locker: Locker) -> None:
    # It was `_Held.__init__() missing 1 required positional argument: 'lease'`.
    class Own(kind):  # type: ignore[misc]
        pass

    for arguments, options in [*WRONG_ARGUMENTS, (([5],), {}), ((locker, "a"), {})]:
        for made in (kind, Own):
            with pytest.raises(TypeError) as refused:
                made(*arguments, **options)
            text = f"{made.__name__} is not made by calling its class: {MADE[kind]}"
            assert str(refused.value).startswith(text)


def objects(locker: Locker) -> Iterator[object]:
    """An object of every public class that a program calls something of."""
    guard = locker.acquire("calls")
    yield from (locker, locker.aio, locker.lock("calls"), guard, guard.lost)
    yield locker.acquire_many(["calls:1", "calls:2"])
    yield from (locker.info("calls")[0], locker.settle()[0])
    yield from (kind(locker, "calls:3", timeout=10) for kind in (compat.Lock, compat.AsyncLock))
    yield from (kind() for kind in CLASSES if issubclass(kind, Exception))


async def async_objects(locker: Locker) -> list[object]:
    guard = await locker.aio.acquire("calls:5")
    return [guard, guard.lost, await locker.aio.acquire_many(["calls:6"])]


def wrong_calls(one: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What may be done with this object by mistake."""
    yield "+", lambda: one + 5
    yield "()", lambda: one()
    yield "in", lambda: 5 in one
    yield "for", lambda: [*one]
    yield "[]", lambda: one["a"]
    yield ".", lambda: one.bogus
    for name in dir(type(one)):
        if name.startswith("_"):
            continue
        if not callable(inspect.getattr_static(type(one), name)):
            yield f"{name} =", lambda name=name: setattr(one, name, 5)  # type: ignore[misc]
            continue
        method = getattr(one, name)
        for arguments, options in WRONG_ARGUMENTS[2:]:
            call = f"{name}() of {len(arguments)} arguments and {options}"
            yield call, lambda method=method, a=arguments, o=options: method(*a, **o)  # type: ignore[misc]


def test_no_error_names_what_is_not_for_users(locker: Locker, servers: list[Node]) -> None:
    async def work() -> None:
        every = [*objects(locker), *await async_objects(locker)]
        kinds = {type(one) for one in every}
        assert kinds == {*CLASSES}, {*CLASSES} ^ kinds
        # What is to be awaited, and was not.
        acquiring = locker.aio.acquire("calls:7")
        for one in [*every, acquiring]:
            for what, call in wrong_calls(one):
                text = await said(call)
                assert not INNER.search(text), f"{one!r} {what}: {text}"
        acquiring.close()
        for kind in CLASSES:
            for arguments, options in WRONG_ARGUMENTS:
                text = await said(lambda: kind(*arguments, **options))  # noqa: B023
                assert not INNER.search(text), f"{kind}: {text}"

    asyncio.run(work())


def test_an_inherited_method_is_that_of_the_class_that_users_know(locker: Locker) -> None:
    with locker.acquire("calls") as guard:
        assert guard.check.__qualname__ == "Guard.check"
        assert guard.lost.is_set.__qualname__ == "Lost.is_set"
        assert inspect.getdoc(guard.check) and not inspect.signature(guard.check).parameters
    assert inspect.signature(compat.Lock).parameters["timeout"].default is None


def test_a_keyword_that_a_lock_of_redis_py_has_not_is_named(locker: Locker) -> None:
    # It was `_Base.__init__() got an unexpected keyword argument 'bogus'`.
    names = "redis, name, timeout, sleep, blocking, blocking_timeout, thread_local, "
    names += "raise_on_release_error, renew, label"

    class Own(compat.Lock):
        def __init__(self, **options: Any) -> None:
            super().__init__(locker, "a", timeout=10, **options)

    made: Any
    for made, name in [(compat.Lock, "Lock"), (compat.AsyncLock, "AsyncLock")]:
        for arguments, options, wrong in [
            ((locker, "a"), {"bogus": 1}, "got an unexpected keyword argument 'bogus'"),
            ((), {}, "missing a required argument: 'redis'"),
            ((1,) * 20, {}, "too many positional arguments"),
        ]:
            with pytest.raises(TypeError) as refused:
                made(*arguments, **options)
            assert str(refused.value) == f"{name}(): {wrong}: there are {names}"
    with pytest.raises(TypeError, match=r"^Lock\(\): got an unexpected keyword argument 'bogus': "):
        Own(bogus=1)


def test_a_value_of_a_wrong_type_is_told_with_its_type_and_what_is_allowed(
    locker: Locker, nodes: list[str]
) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "\ud800"

    # `locker` has a ttl of 10 s, and a timeout of 2 s.
    ranges = {
        "ttl": "6 to 86400",
        "wait": "0 or more",
        "max_hold": "0.02 or more",
        "timeout": "0.001 to 10",
        "lost_margin": "0 or more, and less than 29.698",
        "max_ttl": "0.02 or more",
        "drift": "0 or more, and less than 15",
    }
    allowed = {name: f"a number of seconds, {range}" for name, range in ranges.items()}
    allowed.update(dict.fromkeys(("renew", "shared", "allow_even_nodes"), "True or False"))
    files = ("cacert", "cert", "key")
    allowed.update(dict.fromkeys(files, "a path, as a str or an os.PathLike of str"))
    allowed["label"] = "a str of up to 128 bytes"

    def refused(call: Callable[..., object], name: str, give: str, *arguments: object) -> None:
        for value, shown in [
            (object, "<class 'object'>, of type type"),
            (Odd(), "\\ud800, of type Odd"),
            (5j, "5j, of type complex"),
        ]:
            with pytest.raises(OptionError) as error:
                call(*arguments, **{name: value})
            assert str(error.value) == f"{name} is {shown}: give {give}"

    calls: list[tuple[Any, object]] = [
        (Locker, nodes),
        (locker.acquire, "a"),
        (locker.try_acquire, "a"),
        (locker.lock, "a"),
        (locker.aio.lock, "a"),
        (locker.acquire_many, ["a"]),
    ]
    for call, first in calls:
        for name in [*inspect.signature(call).parameters][1:]:
            give = allowed[name]
            if call == locker.acquire_many and name == "shared":
                give = "a list of names"
            elif call is Locker and name == "ttl":
                give = "a number of seconds, 0.02 to 86400"
            refused(call, name, give, first)
    with locker.acquire("calls") as guard:
        refused(guard.extend, "ttl", allowed["ttl"])
        refused(guard.lost.wait, "timeout", "a number of seconds, 0 or more")

    async def work() -> None:
        async with await locker.aio.acquire("calls") as guard:
            texts = [
                await said(lambda: locker.aio.acquire("a", ttl="5")),  # type: ignore[arg-type]
                await said(lambda: locker.aio.try_acquire("a", ttl="5")),  # type: ignore[arg-type]
                await said(lambda: locker.aio.acquire_many(["a"], ttl="5")),  # type: ignore[arg-type]
                await said(lambda: guard.extend("5")),  # type: ignore[arg-type]
            ]
        assert {*texts} == {f"ttl is '5', of type str: give {allowed['ttl']}"}

    asyncio.run(work())


def test_a_guard_on_a_stack_of_the_other_kind_says_what_it_is_for(locker: Locker) -> None:
    # It was `__enter__() takes 1 positional argument but 4 were given`, at the end of the stack.
    async def on_stacks() -> None:
        guard: Any = await locker.aio.acquire("stacks")
        with pytest.raises(TypeError, match="is for `async with`"), contextlib.ExitStack() as stack:
            stack.push(guard)
        await guard.release()
        held: Any = await asyncio.to_thread(locker.acquire, "stacks")
        with pytest.raises(TypeError, match="is for `with`"):
            async with contextlib.AsyncExitStack() as stacks:
                stacks.push_async_exit(held)
        await asyncio.to_thread(held.release)

    asyncio.run(on_stacks())
