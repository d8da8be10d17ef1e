"""Measures in Python what main.rs asks for, line by line: word,tasks,seconds."""

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
# Clients and loops are kept, so that the warm-up round opens the connections of all of them.
redis_client = redis.Redis.from_url(urls[0])
redis_client_async = redis.asyncio.Redis.from_url(urls[0])
loops = {word: asyncio.new_event_loop() for word in ("asyncio", "redis-py aio", "line asyncio")}
loops["uvloop"] = uvloop.new_event_loop()
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


def package(name):
    locker.acquire(name).release()


async def package_async(name):
    guard = await locker.aio.acquire(name)
    await guard.release()


def redis_py(name):
    lock = redis_client.lock(name, timeout=30)
    lock.acquire()
    lock.release()


async def redis_py_async(name):
    lock = redis_client_async.lock(name, timeout=30)
    await lock.acquire()
    await lock.release()


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
    elif word == "redis-py":
        figure = in_threads(clock, redis_py)
    elif word == "line threads":
        figure = line_in_threads(tasks, seconds)
    else:
        if word == "line asyncio":
            work = line_in_tasks(tasks, seconds)
        else:
            work = in_tasks(clock, redis_py_async if word == "redis-py aio" else package_async)
        figure = loops[word].run_until_complete(work)
    print(figure, flush=True)
