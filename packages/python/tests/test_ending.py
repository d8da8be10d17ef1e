"""What is left when a process ends: nothing, and nothing before that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

import lockmod

# Longer than any test waits, so that no lease ends by itself.
TTL = 10 * PATIENCE

ENDING = """if True:
    import sys
    NODES, METHOD = {nodes!r}, {method!r}
    {imports}

    def drop(name):
        guard = lockmod.Locker(NODES, ttl={ttl}, timeout=2).acquire(name)
        kept.append(guard)

    def begin(name, pipe):
        # It ends before its thread does.
        util.Finalize(None, pipe.send, args=["the main thread is over"], exitpriority=-2_000_000)
        guard = lockmod.Locker(NODES, ttl={ttl}, timeout=2).acquire(name)
        threading.Thread(target=work, args=[guard, pipe]).start()

    def work(guard, pipe):
        pipe.recv()
        pipe.send(guard.lost.is_set())

    kept = []
    if __name__ == "__main__":
        context = multiprocessing.get_context(METHOD)
        lockmod.Locker(NODES, timeout=2).acquire("before").release()
        for number in range(3):
            child = context.Process(target=drop, args=[f"{name}:drop-{{number}}"])
            child.start()
            child.join()
            assert child.exitcode == 0
        pipe, theirs = context.Pipe()
        child = context.Process(target=begin, args=["{name}:thread", theirs])
        child.start()
        assert pipe.recv() == "the main thread is over"
        pipe.send("now you")
        assert pipe.recv() is False, "it was released under its thread"
        child.join()
        assert child.exitcode == 0
    """
IMPORTS = {
    "lockmod first": "import lockmod; import multiprocessing.util as util",
    "multiprocessing first": "import multiprocessing.util as util; import lockmod",
}


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_leaves_nothing_behind(
    locker: lockmod.Locker, nodes: list[str], name: str, tmp_path: Path, method: str, imports: str
) -> None:
    """Regression: a forked child ends without the functions of atexit."""
    first = IMPORTS[imports] + "; import multiprocessing, threading"
    file = tmp_path / "ending.py"
    file.write_text(ENDING.format(nodes=nodes, method=method, imports=first, name=name, ttl=TTL))
    subprocess.run([sys.executable, file], check=True, timeout=2 * PATIENCE)
    for what in ("drop-0", "drop-1", "drop-2", "thread"):
        assert {told.state for told in locker.info(f"{name}:{what}")} == {"free"}, what


def test_the_package_does_not_import_multiprocessing(nodes: list[str], name: str) -> None:
    program = f"import sys, lockmod; lockmod.Locker({nodes!r}, timeout=2).acquire({name!r})"
    program += "; assert not any(one.startswith('multiprocessing') for one in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


WAITING = """if True:
    import atexit, threading

    def at_the_end():
        # It runs after the locks are released.
        try:
            locker.acquire({name!r}, wait=60)
        except lockmod.LockError as error:
            print(repr(error), flush=True)

    atexit.register(at_the_end)
    import lockmod
    locker = lockmod.Locker({nodes!r}, ttl={ttl}, timeout=2)
    guard = locker.acquire({name!r})
    begun = threading.Semaphore(0)

    def work():
        with locker.lock({name!r} + ":work") as mine:
            begun.release()
            while True:
                mine.check()

    def stand_in_line():
        begun.release()
        locker.acquire({name!r}, wait=60)

    def wait():
        begun.release()
        guard.lost.wait()

    def end_a_block():
        with locker.lock({name!r} + ":block") as mine:
            begun.release()
            while not mine.lost.is_set():
                pass

    threads = [work, stand_in_line, wait, end_a_block]
    for one in threads:
        threading.Thread(target=one, daemon=True).start()
    for one in threads:
        begun.acquire()
    while any(told.waiters == 0 for told in locker.info({name!r})):
        pass
    """


def ends_quietly(program: str) -> bytes:
    """Runs it, and returns what it printed, but for errors: it must print none."""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=2 * PATIENCE, capture_output=True
    )
    assert ended.stderr == b""
    return ended.stdout


def test_a_daemon_thread_says_nothing_when_the_program_ends(
    locker: lockmod.Locker, nodes: list[str], name: str
) -> None:
    """Regression: each that waited printed the traceback of an error."""
    said = ends_quietly(WAITING.format(nodes=nodes, name=name, ttl=TTL))
    assert said == b"RefusedError('the program ends')\n"
    for what in ("", ":work", ":block"):
        assert {told.state for told in locker.info(name + what)} == {"free"}, what


UNFINISHED = """if True:
    import contextlib
    import lockmod
    locker = lockmod.Locker({nodes!r}, ttl={ttl}, timeout=2)

    def block():
        with locker.lock({name!r}):
            yield

    def blocks():
        with locker.acquire_many([{name!r} + ":1", {name!r} + ":2"]):
            yield

    one, several = block(), contextlib.contextmanager(blocks)()
    next(one)
    several.__enter__()
    """


def test_a_generator_that_is_not_finished_says_nothing_when_the_program_ends(
    locker: lockmod.Locker, nodes: list[str], name: str
) -> None:
    """Regression: each printed an error, though its lock was released."""
    assert ends_quietly(UNFINISHED.format(nodes=nodes, name=name, ttl=TTL)) == b""
    for what in ("", ":1", ":2"):
        assert {told.state for told in locker.info(name + what)} == {"free"}, what


LAST = """if True:
    import atexit

    def use():
        for call in (lambda: locker.acquire("a"), guard.check, guard.extend, lock.__enter__):
            try:
                call()
            except Exception as error:
                print(repr(error))
        print(repr(locker), repr(guard), repr(lock))

    class Last:
        def __del__(self):
            use()

    where = {where!r}
    if where == "atexit":
        # It runs after the locks are released.
        atexit.register(use)
    import lockmod
    locker = lockmod.Locker({nodes!r}, ttl={ttl}, timeout=2)
    guard, lock = locker.acquire({name!r}), locker.lock({name!r} + ":2")
    last = Last() if where == "__del__" else None
    """


@pytest.mark.parametrize("where", ["atexit", "__del__"])
def test_the_first_error_may_come_at_the_end_of_a_program(nodes: list[str], name: str, where: str) -> None:
    """Regression: what makes an error was imported with the first one, which was an ImportError."""
    program = LAST.format(nodes=nodes, name=name, ttl=TTL, where=where)
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=2 * PATIENCE, capture_output=True, text=True
    )
    assert ended.stderr == ""
    said = [line.split("(")[0] for line in ended.stdout.splitlines()]
    assert said[:4] == ["RefusedError", "LostError", "LostError", "RefusedError"], ended.stdout
    assert said[4].endswith(f"released> <Lock b'{name}:2'>"), ended.stdout
