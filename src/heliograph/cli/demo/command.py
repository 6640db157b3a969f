"""`heliograph demo`: the whole system on this machine, and a message on its way through it.

Everything is a real process, started by the commands that a user would give; they are printed.
"""

import argparse
import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from heliograph.cli.actions import check_directory, reporting
from heliograph.cli.arguments import Subparsers
from heliograph.runtime import logs
from heliograph.runtime.errors import StartError
from heliograph.system.requirements import require
from heliograph.tasks import TaskScope
from heliograph.transport import loop

_DESCRIPTION = """\
Start both routers, simulated push providers, two phones and the data pipeline on free loopback
ports, each a process of its own, and follow messages from one phone to the other. Then kill the
notification router while messages are on their way, and see the pipeline account for every one of
them. It needs nothing outside this machine, and leaves nothing but its report.
"""


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch messages become pushes, and all of them accounted for, on this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir", type=Path, help="where to create the system (a temporary directory)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave it running, with its page, until Ctrl-C"
    )
    parser.add_argument(
        "--no-pipeline", action="store_true", help="run without Spark, which is faster"
    )
    parser.set_defaults(run=reporting("heliograph demo", run))


def run(options: argparse.Namespace) -> int:
    require(simulators=True, pipeline=not options.no_pipeline)
    logs.set_up(level="error")  # what the supervisor notices is part of the story
    with _directory(options) as directory:
        return loop.run(_demo(directory, options))


@contextlib.contextmanager
def _directory(options: argparse.Namespace) -> Iterator[Path]:
    """Yield a directory; remove a temporary one at the end, except for the report."""
    if options.dir is not None:
        try:
            check_directory(options.dir)
            options.dir.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StartError(f"{options.dir}: {exc.strerror}: choose another --dir") from exc
        yield options.dir.absolute()
        return
    directory = Path(tempfile.mkdtemp(prefix="heliograph-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory / "home", ignore_errors=True)
        with contextlib.suppress(OSError):
            directory.rmdir()


async def _demo(directory: Path, options: argparse.Namespace) -> int:
    from heliograph.cli.demo.story import Story

    async with _stoppable() as stopped:
        tasks = TaskScope()
        story = tasks.spawn(
            Story(directory, with_pipeline=not options.no_pipeline).run(keep=options.keep),
            name="demo",
            is_awaited=True,
        )
        either: set[asyncio.Future[int] | asyncio.Future[None]] = {story, stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not story.done():
            tasks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await story
            print("\nStopped.")
            return 0 if options.keep else 130
        return story.result()


@asynccontextmanager
async def _stoppable() -> AsyncIterator["asyncio.Future[None]"]:
    running = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = running.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop)
    yield stopped
    stopped.cancel()
