"""The programs of examples/python do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Iterator

import pytest
from conftest import PATIENCE, Node, until

from lockmod import Locker

EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def start(nodes: list[str], program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / program), *arguments],
        env={**os.environ, "LOCKMOD_NODES": ",".join(nodes)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def web(nodes: list[str]) -> Iterator[str]:
    server = start(nodes, "web.py", "0")
    assert server.stdout is not None
    port = server.stdout.readline().split()[-1]
    yield f"http://127.0.0.1:{port}/account/17"
    server.kill()
    server.wait()


def post(url: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method="POST", data=b"")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_web_handler_serves_one_at_a_time(web: str, locker: Locker) -> None:
    status, text = post(web)
    assert (status, "under fence" in text) == (200, True)
    with locker.lock("account:17", label="a-colleague"):
        status, text = post(web)
        assert (status, "for a-colleague" in text) == (409, True)


def test_the_worker_leaves_what_another_has(nodes: list[str], locker: Locker) -> None:
    with locker.lock("task:b", label="a-colleague"):
        out, _ = start(nodes, "worker.py", "a", "b", "c").communicate(timeout=PATIENCE)
    lines = out.splitlines()
    assert len(lines) == 7 and "b: left to a-colleague" in lines
    assert sum(line.startswith("c: step") for line in lines) == 3


def test_the_scheduled_job_runs_on_one_host(
    nodes: list[str], servers: list[Node], locker: Locker
) -> None:
    first = start(nodes, "scheduled.py", "600")
    until("it has the lock", lambda: servers[0].info("nightly-report")["state"] == b"held")
    assert first.stdout is not None and "under fence" in first.stdout.readline()
    second = start(nodes, "scheduled.py", "0")
    assert second.communicate(timeout=PATIENCE)[0].startswith("left to ")
    first.kill()
    first.wait()
