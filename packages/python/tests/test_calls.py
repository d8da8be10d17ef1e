"""Wrong calls of everything that is public: their errors name what users know."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import pickle
import re
from typing import Any, Callable, Iterator

import pytest
from conftest import Node

import lockmod
from lockmod import Locker, OptionError, compat

# What begins with one underscore is not for users: `_Held`, but not `__init__`.
INNER = re.compile(r"(?<!\w)_(?!_)\w+")
# The classes of the native part.
NATIVE = re.compile(r"\b(Blocks|Core|Exit|Lease)\b")

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
    # Its methods told of attributes that only this package has.
    with pytest.raises(TypeError, match="is not made by calling its class"):
        kind.__new__(kind)


@pytest.mark.parametrize("kind", [Locker, compat.Lock, compat.AsyncLock])
def test_what_was_not_initialised_says_so(kind: Any) -> None:
    one = kind.__new__(kind)
    assert kind.__name__ in repr(one)
    wanted = {"name": "a", "names": ["a"], "additional_time": 5}
    used = []
    uses = [one, one.aio] if kind is Locker else [one]
    for of, name in [(of, name) for of in uses for name in dir(of)]:
        if name.startswith("_") or not callable(getattr(type(of), name, None)):
            continue
        used.append(name)
        method = getattr(of, name)
        given = [wanted[part] for part in inspect.signature(method).parameters if part in wanted]
        assert asyncio.run(said(lambda: method(*given))) == (  # noqa: B023
            f"{kind.__name__}.__init__() has not been called"
        ), name
    assert {"acquire", "settle", "close"} <= {*used} or {"acquire", "extend", "owned"} <= {*used}
    for name in ("fence", "validity") if kind is not Locker else ():
        with pytest.raises(RuntimeError, match=r"__init__\(\) has not been called"):
            getattr(one, name)


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
    for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        if hasattr(type(one), name):
            yield name, lambda name=name: getattr(one, name)(5)  # type: ignore[misc]
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


def test_what_has_a_native_part_is_neither_copied_nor_pickled(locker: Locker) -> None:
    # The end of a copy was that of the original: `copy.copy(locker).close()` closed both.
    every = [*objects(locker), *asyncio.run(async_objects(locker))]
    values = (Exception, lockmod.NodeInfo, lockmod.NodeVote)
    single = [one for one in every if not isinstance(one, values)]
    assert {type(one) for one in single} == {*MADE, Locker, compat.Lock, compat.AsyncLock}
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    dumps = [functools.partial(pickle.dumps, protocol=protocol) for protocol in protocols]
    for one in single:
        for work in (copy.copy, copy.deepcopy, *dumps):
            with pytest.raises(TypeError) as refused:
                work(one)
            text = f"{type(one).__name__} cannot be copied or pickled: it "
            assert str(refused.value).startswith(text)
    for one in every:
        if isinstance(one, lockmod.Guard):
            one.check()

    class Own(Locker):
        def __init__(self, nodes: str) -> None:
            super().__init__(nodes)
            self.args = (nodes,)

        def __reduce__(self) -> Any:
            return Own, self.args

    own = Own("redis://h")
    with copy.copy(own) as other:
        assert other is not own
    own.lock("a")


def test_values_and_errors_are_copied_and_pickled(locker: Locker) -> None:
    # As `concurrent.futures` does with those of a child.
    errors: list[lockmod.LockError] = [kind("a") for kind in CLASSES if issubclass(kind, lockmod.LockError)]
    with locker.acquire("calls", label="worker-7") as guard:
        values = [*locker.info("calls"), *locker.settle()]
        with pytest.raises(lockmod.HeldError) as held:
            locker.try_acquire("calls")
    with pytest.raises(lockmod.LostError) as lost:
        guard.check()
    assert held.value.label == "worker-7" and lost.value.reason == "released"
    for work in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        for error in [*errors, held.value, lost.value]:
            same = work(error)
            assert (type(same), str(same), vars(same)) == (type(error), str(error), vars(error))
        assert [work(value) for value in values] == values


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
                assert not NATIVE.search(text), f"{one!r} {what}: {text}"
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


def test_what_a_subclass_overrides_is_called_by_the_blocks_of_lock(locker: Locker, nodes: list[str]) -> None:
    # They took the name as it was, beside the holder of the other one.
    class OwnAsync(lockmod.AsyncLocker):
        async def acquire(self, name: Any, **options: Any) -> Any:  # type: ignore[override]
            return await super().acquire(f"own:{name}", **options)

    class Own(Locker):
        def acquire(self, name: Any, **options: Any) -> lockmod.Guard:
            return super().acquire(f"own:{name}", **options)

        @property
        def aio(self) -> lockmod.AsyncLocker:
            return OwnAsync(self)

    own = Own(nodes, ttl=10, timeout=2)

    async def work() -> list[bytes]:
        async with own.lock("calls", wait=0) as guard, own.aio.lock("calls:2") as other:
            return [guard.name, other.name, (await own.aio.try_acquire("calls:3")).name]

    with own.lock("calls", wait=0, shared=False) as guard:
        assert guard.name == b"own:calls"
        with pytest.raises(lockmod.HeldError):
            own.try_acquire("calls")
        locker.try_acquire("calls").release()
    with own.lock("calls", wait=0, renew=False, shared=True) as guard:
        assert not guard.exclusive and repr(own.lock("calls")) == "<Lock b'calls'>"
    locker.settle()
    own.settle()
    assert asyncio.run(work()) == [b"own:calls", b"own:calls:2", b"own:calls:3"]


def test_what_replaces_a_method_is_called_by_the_blocks_of_lock(
    locker: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a test of a program does: its block had the real lock.
    class Fake(Exception):
        pass

    async def work() -> None:
        async with locker.lock("calls"):
            raise AssertionError("the block has begun")

    def acquire(*_: object, **__: object) -> Any:
        raise Fake

    monkeypatch.setattr(Locker, "acquire", acquire)
    monkeypatch.setattr(lockmod.AsyncLocker, "acquire", acquire)
    with pytest.raises(Fake), locker.lock("calls"):
        raise AssertionError("the block has begun")
    with pytest.raises(Fake):
        asyncio.run(work())


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
            return "\ud800\n\x1b"

    # `locker` has a ttl of 10 s, and a timeout of 2 s.
    ranges = {
        "ttl": "6 to 86400",
        "wait": "0 or more",
        "max_hold": "0.02 or more",
        "timeout": "0.001 to 10",
        "lost_margin": "0 or more, and less than 9.85",
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
            (Odd(), "\\ud800\\n\\x1b, of type Odd"),
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
