"""`heliograph device watch`: a phone's screen, until a signal, a count or a timeout."""

import argparse
import asyncio
import contextlib
import signal
import sys

from heliograph.cli.device.screen import PrintingJournal, draw
from heliograph.device.chats.content import Content
from heliograph.device.states import AppState
from heliograph.phone import sources as phone_sources
from heliograph.phone.phone import Phone
from heliograph.phone.push import opened
from heliograph.phone.watch import Screen, Watch
from heliograph.tasks import TaskScope


async def watch(phone: Phone, options: argparse.Namespace) -> int:
    """Run a phone, and return the exit code. Raises `BrokenPipeError` if stdout is closed."""
    done = asyncio.Event()
    shown = 0
    gone: BrokenPipeError | None = None

    def show(content: Content) -> None:
        nonlocal shown, gone
        try:
            print(draw(content, as_json=options.json), flush=True)
        except BrokenPipeError as exc:
            gone = exc
        shown += 1
        if gone is not None or (options.count is not None and shown >= options.count):
            done.set()

    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, done.set)
    async with contextlib.AsyncExitStack() as stack:
        if options.journal is not False:
            place = options.journal or phone.directory / "journal"
            await stack.enter_async_context(phone_sources.journaled(phone, place))
        if not options.json:
            phone.journal = PrintingJournal(phone.journal)
        source = await phone_sources.load(phone)
        await stack.enter_async_context(opened(source))
        screen = Screen(show)
        state = AppState.STOPPED if options.app == "stopped" else AppState.SUSPENDED
        app = phone.foreground(screen, state)
        stack.push_async_callback(app.close)
        await app.launch()
        if options.app == "active":
            await app.open()
        else:
            await app.set_mode(await phone.shared.mode())
        print(f"watching {phone.directory}, app {app.state.value}", file=sys.stderr, flush=True)
        tasks = await stack.enter_async_context(TaskScope())
        task = tasks.spawn(Watch(phone, screen, app).run(source), name="watch", is_awaited=True)
        task.add_done_callback(lambda _: done.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.timeout):
                await done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if gone is not None:
        raise gone
    return 1 if options.count is not None and shown < options.count else 0
