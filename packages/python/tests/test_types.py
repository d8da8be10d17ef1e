"""The package under strict type checkers, and programs that use it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import lockmod

ROOT = Path(__file__).parent.parent

USE = '''
from decimal import Decimal
from fractions import Fraction
from typing import Awaitable
from lockmod import AsyncGuard, Guard, HeldError, Locker, Name

NAME: Name = b"a"

def sync(locker: Locker) -> int:
    with locker.lock(NAME, wait=1) as guard:
        checked: Guard = guard
        guard.lost.call(lambda reason: print(reason.upper()))
        guard.downgrade()
    with locker.lock("a", shared=True), locker.acquire("b", shared=True) as reader:
        is_writer: bool = reader.exclusive
    # What float() makes a float of.
    locker.acquire("d", ttl=Decimal("5"), wait=Fraction(1, 2)).extend(Decimal(5))
    with locker.acquire_many(["a"]) as guards:
        first: Guard = guards[0]
        first.check()
        text: str = locker.acquire(bytearray(b"c")).name.decode()
        labels: tuple[str, ...] = locker.info("a")[0].reader_labels
        return checked.fence + len(labels) + is_writer + len(text)

async def coroutine(locker: Locker) -> str:
    async with locker.lock("a") as guard:
        checked: AsyncGuard = guard
        extended: Awaitable[None] = checked.extend(5)
        await extended
        downgraded: Awaitable[None] = checked.downgrade()
        await downgraded
        left: str | None = await guard.lost.wait(1.5)
        return left or await guard.lost.wait()

async def several(locker: Locker) -> AsyncGuard:
    async with await locker.aio.acquire_many(["a"]) as guards:
        return guards[0]

def told(error: HeldError) -> float:
    return (error.left or 0) + sum(vote.left or 0 for vote in error.nodes)
'''
WRONG = [
    'from lockmod import Locker\nLocker("redis://a", tll=3)\n',
    'from lockmod import Locker\nLocker("redis://a").acquire(3)\n',
    'from lockmod import Locker\nLocker("redis://a").acquire("a", shared="yes")\n',
    'from lockmod import Locker\nLocker("redis://a").acquire_many(["a"], shared=True)\n',
    'from lockmod import Locker\nLocker("redis://a").acquire("a").release().x\n',
    'from lockmod import Locker\nLocker("redis://a", ttl="5")\n',
]


def check(checker: list[str], file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*checker, str(file)], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_programs_are_checked_through_the_types_of_the_package(checker: str, tmp_path: Path) -> None:
    # From the project's folder, whose settings are strict.
    python = ["--python-executable" if checker == "mypy" else "--pythonpath", sys.executable]
    command = [sys.executable, "-m", checker, *python]
    good = tmp_path / "use.py"
    good.write_text(USE)
    result = check(command, good)
    assert result.returncode == 0, result.stdout + result.stderr
    for number, wrong in enumerate(WRONG):
        bad = tmp_path / f"wrong{number}.py"
        bad.write_text(wrong)
        assert check(command, bad).returncode == 1, wrong


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_package_is_clean(checker: str) -> None:
    command = [sys.executable, "-m", checker]
    command += ["--pythonpath", sys.executable] if checker == "pyright" else []
    result = check(command, Path("python/lockmod"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 cannot read `float | None`")
def test_what_reads_annotations_can_read_those_of_each_class() -> None:
    classes = [kind for _, kind in inspect.getmembers(lockmod, inspect.isclass)]
    assert lockmod.LockError in classes
    for kind in classes:
        typing.get_type_hints(kind)
