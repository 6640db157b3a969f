"""Locks between tasks and between processes, beside both kinds of database."""

import asyncio
import subprocess
import sys

import pytest

from heliograph.db.locks import open_locks

HOLDER = """
import asyncio, sys
from heliograph.db.locks import open_locks

async def main():
    locks = open_locks(sys.argv[1])
    async with locks.hold("a"):
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


def a_holder(url: str) -> "subprocess.Popen[str]":
    """A process that holds the lock `a` until it reads a line, or dies."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_one_at_a_time(url: str) -> None:
    locks = open_locks(url)
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        async with locks.hold("a"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*[work() for _ in range(20)])
    locks.close()
    assert most == 1


async def test_two_holders_exclude_each_other(url: str) -> None:
    one, two = open_locks(url), open_locks(url)
    async with one.hold("a"):
        with pytest.raises(TimeoutError):
            async with two.hold("a", within=0.05):
                pass
        async with two.hold("b", within=30.0):
            pass
    async with two.hold("a", within=30.0):
        pass
    one.close()
    two.close()


async def test_giving_up_leaves_nothing_locked(url: str) -> None:
    one, two = open_locks(url), open_locks(url)
    async with one.hold("a"):
        with pytest.raises(TimeoutError):
            async with two.hold("a", within=0.05):
                pass
    async with one.hold("a", within=30.0), two.hold("b", within=30.0):
        pass
    async with two.hold("a", within=30.0):
        pass
    one.close()
    two.close()


async def test_another_process_excludes_us(url: str) -> None:
    process = a_holder(url)
    locks = open_locks(url)
    try:
        with pytest.raises(TimeoutError):
            async with locks.hold("a", within=0.1):
                pass
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        async with locks.hold("a", within=10.0):
            pass
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        locks.close()


async def test_a_killed_process_holds_nothing(url: str) -> None:
    process = a_holder(url)
    locks = open_locks(url)
    process.kill()
    process.wait()
    async with locks.hold("a", within=10.0):
        pass
    locks.close()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
