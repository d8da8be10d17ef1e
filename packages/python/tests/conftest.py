"""Real nodes for the tests: servers of their own, killed when the tests end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import redis

import lockmod

# Generous, for busy machines; nothing waits this long when all is well.
PATIENCE = 30.0
SERVER = os.environ.get("LOCKMOD_REDIS_SERVER", "redis-server")


def module() -> str:
    path = os.environ.get("LOCKMOD_MODULE")
    if path is None:
        raise RuntimeError("LOCKMOD_MODULE must name liblockmod.so")
    return path


def until(what: str, done: Callable[[], Any]) -> Any:
    """Polls until `done` returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = done()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"timed out waiting until {what}")


async def until_async(what: str, done: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = done()
        if value:
            return value
        await asyncio.sleep(0.005)
    raise AssertionError(f"timed out waiting until {what}")


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Node:
    """A server on a port and in a folder of its own, with the module unless told otherwise.

    One that forgets its leases begins in quarantine when it starts again.
    """

    def __init__(self, *, with_module: bool = True, forgets: bool = False) -> None:
        self.with_module, self.forgets = with_module, forgets
        self.folder = tempfile.mkdtemp(prefix="lockmod-python-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        command += ["--enable-debug-command", "local"]
        if self.with_module:
            command += ["--loadmodule", module()]
        if self.forgets:
            command += ["--appendonly", "no"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        until("the server answers", self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"the server has ended with {code}; it needs the module {module()}"
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)

    def run(self, *command: str | int) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def info(self, name: str) -> dict[str, Any]:
        fields = self.run("LOCK.INFO", name)
        if isinstance(fields, dict):
            return {key.decode(): value for key, value in fields.items()}
        return {key.decode(): value for key, value in zip(fields[::2], fields[1::2])}

    def holder(self, name: str) -> str | None:
        told = self.info(name)
        return told["label"].decode() if told["state"] == b"held" else None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _three() -> Iterator[list[Node]]:
    nodes = [Node() for _ in range(3)]
    yield nodes
    for node in nodes:
        node.remove()


@pytest.fixture
def servers(_three: list[Node]) -> Iterator[list[Node]]:
    """Three nodes, empty, with fences that begin at 1."""
    for node in _three:
        if node.process is None:
            node.start()
        node.resume()
        node.run("FLUSHALL")
    yield _three
    for node in _three:
        node.resume()


@pytest.fixture
def nodes(servers: list[Node]) -> list[str]:
    return [node.url for node in servers]


@pytest.fixture
def locker(nodes: list[str]) -> lockmod.Locker:
    # A busy machine may be slow to answer; every test that needs less says so.
    return lockmod.Locker(nodes, ttl=10, timeout=2, wait=PATIENCE)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lock of the test's own: fences outlast it."""
    return f"{Path(str(request.node.path)).stem}:{request.node.name}"
