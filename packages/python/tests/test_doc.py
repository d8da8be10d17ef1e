"""The examples in docstrings run, on nodes of their own: they show fences that begin at 1."""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib.metadata
import inspect
import re
from pathlib import Path
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


def undescribed(item: ast.ClassDef) -> list[str]:
    """The fields of the class that no text follows."""
    return [
        f"{item.name}.{field.target.id}"
        for field, text in zip(item.body, [*item.body[1:], None])
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not field.target.id.startswith("_")
        and not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant))
    ]


def test_the_package_tells_its_version() -> None:
    assert lockmod.__version__ == importlib.metadata.version("lockmod")


def test_every_field_is_described() -> None:
    files = Path(lockmod.__file__).parent.glob("*.py")
    items = [item for file in files for item in ast.parse(file.read_text()).body]
    classes = [item for item in items if isinstance(item, ast.ClassDef) and item.name in lockmod.__all__]
    assert {"LockError", "NodeInfo", "NodeVote"} <= {item.name for item in classes}
    # The class of a tuple has a list of them, from which `help()` has their texts.
    tuples = [lockmod.NodeInfo, lockmod.NodeVote]
    others = [item for item in classes if item.name not in {kind.__name__ for kind in tuples}]
    assert not [field for item in others for field in undescribed(item)]
    for kind in tuples:
        texts = {name: getattr(kind, name).__doc__ for name in kind._fields}
        assert not [name for name, text in texts.items() if not text or text.startswith("Alias")]
        assert len({*texts.values()}) == len(texts)


TIMES = {"ttl", "wait", "timeout", "max_hold", "max_ttl", "lost_margin", "drift"}


def test_whoever_gives_a_time_reads_its_unit() -> None:
    # The README showed `ttl=10` and `extend(60)`, and never told of what.
    asked = [
        (name, inspect.getdoc(item) or "", TIMES & {*inspect.signature(item).parameters})
        for name, item in documented()
        if inspect.isfunction(item) or item is lockmod.Locker
    ]
    elsewhere = re.compile(r"(see|options (of|are those of)) `[\w.]+`")
    for name, text, times in asked:
        assert not times or "second" in text or elsewhere.search(text), f"{name}: {times}"
    assert sum(bool(times) for *_, times in asked) > 10
    readme = Path(__file__).parents[1].joinpath("README.md").read_text()
    use = readme.split("## Use", 1)[1].split("\n## ", 1)[0]
    assert re.search(r"ttl=\d+\) *# seconds", use) and "lengths of time are in seconds" in use


def test_there_are_examples() -> None:
    parser = doctest.DocTestParser()
    counts = [len(parser.get_examples(inspect.getdoc(item) or "")) for _, item in documented()]
    assert sum(count > 0 for count in counts) >= 6
