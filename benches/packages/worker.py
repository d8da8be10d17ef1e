"""Measures in Python what the benchmark asks for, line by line: word,tasks,seconds. See main.rs."""

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio
import uvloop

from lockmod import Locker

urls = sys.argv[1:]
locker = Locker(urls)
NAMES_PER_TASK = 1000


class Clock:
    """Counts cycles until the time is over."""

    def __init__(self, word, tasks, seconds):
        self.word, self.tasks, self.seconds = word, tasks, seconds
        self.counts = [0] * tasks
        self.start = time.perf_counter()

    def names(self, task):
        while time.perf_counter() - self.start < self.seconds:
            yield f"{self.word}:{task}:{self.counts[task] % NAMES_PER_TASK}"
            self.counts[task] += 1

    def rate(self):
        return sum(self.counts) / (time.perf_counter() - self.start)


def in_threads(clock, cycle):
    def one(task):
        for name in clock.names(task):
            cycle(name)

    threads = [threading.Thread(target=one, args=(task,)) for task in range(clock.tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock.rate()


async def in_tasks(clock, cycle):
    async def one(task):
        for name in clock.names(task):
            await cycle(name)

    await asyncio.gather(*(one(task) for task in range(clock.tasks)))
    return clock.rate()


def run(loop, work):
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def package(name):
    locker.acquire(name).release()


async def package_async(name):
    guard = await locker.aio.acquire(name)
    await guard.release()


def redis_py(clock):
    client = redis.Redis.from_url(urls[0], max_connections=clock.tasks + 1)

    def cycle(name):
        lock = client.lock(name, timeout=30)
        lock.acquire()
        lock.release()

    return in_threads(clock, cycle)


async def redis_py_async(clock):
    client = redis.asyncio.Redis.from_url(urls[0], max_connections=clock.tasks + 1)

    async def cycle(name):
        lock = client.lock(name, timeout=30)
        await lock.acquire()
        await lock.release()

    rate = await in_tasks(clock, cycle)
    await client.aclose()
    return rate


def line_in_threads(holders, seconds):
    def one():
        with locker.lock("line"):
            time.sleep(seconds)

    threads = [threading.Thread(target=one) for _ in range(holders)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


async def line_in_tasks(holders, seconds):
    async def one():
        async with locker.lock("line"):
            await asyncio.sleep(seconds)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(holders)))
    return time.perf_counter() - start


for line in sys.stdin:
    word, tasks, seconds = line.strip().split(",")
    tasks, seconds = int(tasks), float(seconds)
    clock = Clock(word, tasks, seconds)
    if word == "threads":
        figure = in_threads(clock, package)
    elif word == "asyncio":
        figure = run(asyncio.new_event_loop(), in_tasks(clock, package_async))
    elif word == "uvloop":
        figure = run(uvloop.new_event_loop(), in_tasks(clock, package_async))
    elif word == "redis-py":
        figure = redis_py(clock)
    elif word == "redis-py aio":
        figure = run(asyncio.new_event_loop(), redis_py_async(clock))
    elif word == "line threads":
        figure = line_in_threads(tasks, seconds)
    else:
        figure = run(asyncio.new_event_loop(), line_in_tasks(tasks, seconds))
    print(figure, flush=True)
