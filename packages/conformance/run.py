"""Plays the recorded exchanges to a client of the quorum protocol, and says where it departs.

    python3 packages/conformance/run.py [--only WORDS] [--skip WORDS] DRIVER [ARGUMENT ...]

Needs Python 3.9 and nothing else. DRIVER is a program of yours that reads a command from each line
of its input, has your client do it, and writes one line; docs/clients.md says which commands, and
how exchanges.json is to be read. The nodes are played by this program, on ports of loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

PATIENCE = 20.0
"""Seconds for anything to happen; nothing takes so long when all is well."""
AT_ONCE = 4
"""Exchanges that are played at the same time."""
QUIET = 0.15
"""Seconds at the end of each exchange in which nothing more may come."""


class Departure(Exception):
    """The client does something else than what is recorded."""


class Node:
    """A server that answers what the exchange says."""

    def __init__(self, number: int, names: dict[str, bytes], may: list[str]) -> None:
        self.number, self.names, self.may = number, names, may
        self.received: asyncio.Queue[tuple[list[bytes], asyncio.StreamWriter]] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.is_reached = asyncio.Event()
        self.hangs = False
        self.port = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                command = await read(reader)
                if command[0].upper().startswith(b"LOCK.") and command[0].upper() != b"LOCK.INFO":
                    self.received.put_nowait((command, writer))
                    self.is_reached.set()
                elif not self.hangs:
                    writer.write(self.at_login(command))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def at_login(self, command: list[bytes]) -> bytes:
        """The answers to what clients say when they connect. There is no RESP3."""
        word = command[0].upper()
        if word == b"PING":
            return b"+PONG\r\n"
        if word == b"INFO":
            return reply(f"run_id:{self.number:040d}\r\n".encode())
        if word in (b"CLIENT", b"SELECT", b"AUTH", b"QUIT"):
            return b"+OK\r\n"
        return b"-ERR unknown command '" + command[0] + b"'\r\n"

    async def reached(self) -> None:
        """Waits for its first command."""
        try:
            await asyncio.wait_for(self.is_reached.wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise Departure(f"node {self.number} got nothing") from None

    async def get(self, pattern: str) -> asyncio.StreamWriter:
        """Waits for the next command, which has to fit."""
        while True:
            try:
                command, writer = await asyncio.wait_for(self.received.get(), PATIENCE)
            except asyncio.TimeoutError:
                missing = f"node {self.number} got nothing, and should get {pattern}"
                raise Departure(missing) from None
            if self.writer not in (None, writer):
                raise Departure(f"node {self.number} got {shown(command)} on another connection")
            self.writer = writer
            if fits(command, pattern, self.names):
                return writer
            self.allow(command, writer, f"and should get {pattern}")

    def allow(self, command: list[bytes], writer: asyncio.StreamWriter, why: str) -> None:
        """Answers what a client may send or not: a raise of stragglers."""
        if not any(fits(command, pattern, self.names) for pattern in self.may):
            raise Departure(f"node {self.number} got {shown(command)}, {why}")
        if not self.hangs:
            writer.write(reply(int(command[-1])))

    def rest(self) -> None:
        while not self.received.empty():
            self.allow(*self.received.get_nowait(), "and should get nothing")

    def close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self.writer = None


async def read(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    command = []
    for _ in range(count):
        length = int((await reader.readuntil(b"\r\n"))[1:])
        command.append((await reader.readexactly(length + 2))[:-2])
    return command


def reply(value: int | str | bytes | None) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, str):
        return value.encode() + b"\r\n"
    return b"$%d\r\n%s\r\n" % (len(value), value)


def fits(command: list[bytes], pattern: str, names: dict[str, bytes]) -> bool:
    """`<a>` is a token: fresh where it is named first, and the same from then on."""
    words = pattern.split()
    if words[-1] == "...":
        words.pop()
    elif len(command) != len(words):
        return False
    if len(command) < len(words):
        return False
    found = {}
    for word, given in zip(words, command):
        if not word.startswith("<"):
            if word.encode() != (given.upper() if given.upper().startswith(b"LOCK.") else given):
                return False
        elif word in names:
            if names[word] != given:
                return False
        elif len(given) < 16 or given in names.values():
            return False
        else:
            found[word] = given
    names.update(found)
    return True


def shown(command: list[bytes]) -> str:
    return " ".join(word.decode() if word.isascii() else f"({len(word)} bytes)" for word in command)


class Driver:
    """The client under test."""

    def __init__(self, command: list[str], nodes: list[Node]) -> None:
        urls = ",".join(f"redis://127.0.0.1:{node.port}" for node in nodes)
        self.command = command
        self.environment = {**os.environ, "LOCKMOD_NODES": urls, "LOCKMOD_LABEL": "driver"}

    async def __aenter__(self) -> Driver:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env=self.environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise Departure(f"the driver cannot be run: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def hear(self) -> str:
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        except asyncio.TimeoutError:
            raise Departure("the driver says nothing") from None
        if not line:
            raise Departure("the driver has ended")
        return line.decode().rstrip("\n")

    async def says(self, wanted: str) -> None:
        said = await self.hear()
        if said != wanted if wanted != "no lock" else said.isdigit():
            raise Departure(f"the driver says {said!r}, and should say {wanted!r}")

    async def until(self, question: str, wanted: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while loop.time() < deadline:
            self.tell(question)
            if await self.hear() == wanted:
                return
            await asyncio.sleep(0.02)
        raise Departure(f"{question} never comes to {wanted}")


async def step(what: dict, nodes: list[Node], driver: Driver) -> None:
    if "do" in what:
        driver.tell(what["do"])
        if what["do"].startswith("acquire"):
            # A client may withdraw what has not left when the others have decided, so nobody
            # replies while it still connects to a node.
            for node in nodes:
                await node.reached()
    elif "says" in what:
        await driver.says(what["says"])
    elif "until" in what:
        await driver.until(what["until"], what["is"])
    elif "quiet_ms" in what:
        await asyncio.sleep(what["quiet_ms"] / 1000)
        for node in nodes:
            node.rest()
    else:
        node = nodes[what["node"]]
        writer = await node.get(what["gets"])
        if what.get("closes"):
            node.close(writer)
        elif what.get("hangs"):
            node.hangs = True
        elif not node.hangs:
            writer.write(reply(what["replies"]))


@contextlib.asynccontextmanager
async def begun(exchange: dict, command: list[str]) -> AsyncIterator[tuple[list[Node], Driver]]:
    """The nodes of this exchange, and a driver that has a locker for them."""
    names: dict[str, bytes] = {}
    nodes = [Node(number, names, exchange.get("may", [])) for number in range(exchange["nodes"])]
    for node in nodes:
        await node.start()
    try:
        async with Driver(command, nodes) as driver:
            driver.tell(f"locker {exchange['ttl_ms']}")
            await driver.says("ready")
            yield nodes, driver
    finally:
        for node in nodes:
            node.server.close()


async def play(exchange: dict, command: list[str]) -> None:
    async with begun(exchange, command) as (nodes, driver):
        for number, what in enumerate(exchange["play"], 1):
            try:
                await step(what, nodes, driver)
            except Departure as departure:
                raise Departure(f"step {number}: {departure}") from None
        await step({"quiet_ms": QUIET * 1000}, nodes, driver)


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", default="", help="exchanges whose names have these words")
    arguments.add_argument("--skip", help="not those whose names have these words, such as reader")
    arguments.add_argument("driver", nargs=argparse.REMAINDER)
    given = arguments.parse_args()
    exchanges = json.loads(Path(__file__).with_name("exchanges.json").read_text())
    chosen = [exchange for exchange in exchanges if given.only in exchange["name"]]
    if given.skip:
        chosen = [exchange for exchange in chosen if given.skip not in exchange["name"]]
    # A driver that cannot start would say so once for each exchange.
    for exchange in chosen[:1]:
        try:
            async with begun(exchange, given.driver):
                pass
        except Departure as departure:
            print(f"no 'ready' for 'locker {exchange['ttl_ms']}': {departure}")
            return 1
    room = asyncio.Semaphore(AT_ONCE)

    async def passes(exchange: dict) -> bool:
        async with room:
            try:
                await play(exchange, given.driver)
            except Departure as departure:
                print(f"FAILED  {exchange['name']}: {departure}", flush=True)
                print(f"        {exchange['why']}", flush=True)
                return False
            print(f"ok      {exchange['name']}", flush=True)
            return True

    failed = (await asyncio.gather(*(passes(exchange) for exchange in chosen))).count(False)
    print(f"{len(chosen) - failed} of {len(chosen)} exchanges")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
