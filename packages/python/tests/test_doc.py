"""The examples in docstrings run, on nodes of their own: they show fences that begin at 1."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from typing import Iterator

import pytest
from conftest import Node

import lockmod


@pytest.fixture(scope="module")
def fresh() -> Iterator[list[str]]:
    nodes = [Node() for _ in range(3)]
    yield [node.url for node in nodes]
    for node in nodes:
        node.remove()


def documented() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [("lockmod", lockmod)]
    for name in lockmod.__all__:
        item = getattr(lockmod, name)
        if not isinstance(item, type):
            # An alias of types cannot have a text of its own.
            continue
        found.append((name, item))
        found += [
            (f"{name}.{member}", value)
            for member, value in vars(item).items()
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        ]
    return found


@pytest.mark.parametrize(("name", "item"), documented(), ids=lambda value: str(value)[:40])
def test_everything_is_described_and_examples_run(name: str, item: object, fresh: list[str]) -> None:
    text = inspect.getdoc(item)
    assert text, f"{name} has no docstring"
    made = {"ttl": 30.0, "timeout": 2.0}
    globs = {
        "asyncio": asyncio,
        "nodes": fresh,
        "locker": lockmod.Locker(fresh, **made),  # type: ignore[arg-type]
        "other": lockmod.Locker(fresh, **made),  # type: ignore[arg-type]
    }
    test = doctest.DocTestParser().get_doctest(text, globs, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_there_are_examples() -> None:
    parser = doctest.DocTestParser()
    counts = [len(parser.get_examples(inspect.getdoc(item) or "")) for _, item in documented()]
    assert sum(count > 0 for count in counts) >= 6
