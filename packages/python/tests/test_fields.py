"""What the native part gives is what is declared, and lengths of time are in seconds."""

from __future__ import annotations

import ast
import inspect
import threading
import time
from pathlib import Path
from typing import Any, Iterable

import pytest
from conftest import PATIENCE, Node, until

import lockmod
from lockmod import Locker, _lockmod

STUB = ast.parse((Path(lockmod.__file__).parent / "_lockmod.pyi").read_text())


def given(told: Iterable[Any]) -> set[str]:
    """The fields that one of these NamedTuples has a value in."""
    empty: tuple[object, ...] = (None, 0, ())
    return {field for one in told for field in one._fields if getattr(one, field) not in empty}


def is_seconds(value: float | None, least: float) -> bool:
    """Whether it can be a length of so many seconds: in milliseconds it would be too many."""
    return value is not None and least <= value < PATIENCE


def test_all_fields_are_given_and_lengths_are_in_seconds(
    locker: Locker, nodes: list[str], servers: list[Node], name: str
) -> None:
    guard = locker.acquire(name, label="worker-7")
    reader = locker.acquire(name + ":read", label="reader", shared=True)
    # As a reader, so that both kinds of waiters are counted.
    wait = {"wait": PATIENCE, "shared": True}
    waiting = threading.Thread(target=lambda: locker.acquire(name, **wait).release())  # type: ignore[arg-type]
    waiting.start()
    until("it waits", lambda: all(node.info(name)["waiters"] == 1 for node in servers))
    time.sleep(0.1)
    with pytest.raises(lockmod.HeldError) as held:
        locker.acquire(name, wait=0.1)
    infos = locker.info(name)
    assert is_seconds(guard.validity, 1) and guard.validity <= 10
    assert is_seconds(held.value.waited, 0.1)
    for told in [*infos, *held.value.nodes, held.value]:
        assert is_seconds(told.left, 1) and told.left is not None and told.left <= 10
        assert is_seconds(told.held_for, 0.1)
    for info in infos:
        assert is_seconds(info.first_waiting, 0.1)

    every = [*infos, *locker.info(reader.name)]
    for node in servers[1:]:
        node.pause()
    other = Locker(nodes, ttl=10, timeout=0.5)
    every += other.info(name)
    assert given(every) == set(lockmod.NodeInfo._fields)
    with pytest.raises(lockmod.NoQuorumError) as failed:
        other.try_acquire(name + ":none")
    votes = [*held.value.nodes, *failed.value.nodes]
    # Only a Cluster, or a group under Sentinel, has a master.
    assert given(votes) == set(lockmod.NodeVote._fields) - {"master"}
    for node in servers:
        node.resume()
    guard.release()
    waiting.join(PATIENCE)
    reader.release()


def parameters(method: ast.FunctionDef) -> list[str]:
    asked = method.args
    return [one.arg for one in [*asked.posonlyargs, *asked.args, *asked.kwonlyargs]]


NATIVE = [node for node in STUB.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("declared", NATIVE, ids=lambda declared: str(declared.name))
def test_the_native_classes_are_as_declared(declared: ast.ClassDef) -> None:
    real = getattr(_lockmod, declared.name)
    # Of several forms of a method, the last has all parameters.
    methods = {one.name: one for one in declared.body if isinstance(one, ast.FunctionDef)}
    public = {name for name in vars(real) if not name.startswith("__")}
    assert public == {name for name in methods if not name.startswith("__")}
    for name in public:
        member = getattr(real, name)
        if callable(member):
            assert [*inspect.signature(member).parameters] == parameters(methods[name]), name


def test_the_native_functions_are_as_declared() -> None:
    declared = {node.name for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert {name for name in vars(_lockmod) if not name.startswith("_")} == declared
