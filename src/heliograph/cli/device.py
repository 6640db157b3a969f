"""`heliograph device`: a phone in a terminal, over real routers."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.cli.device_screen import describe, draw, plain
from heliograph.transport import loop

_EPILOG = """\
A phone of your own, and what it would show:

  heliograph device init --dir alice --name Alice --smp smp://... --ntf ntf://...
  heliograph device register --dir alice --apns http://127.0.0.1:PORT   (the simulator's control)
  heliograph device connect --dir alice --name Bob                      (prints a link for Bob)
  heliograph device connect --dir bob LINK --name Alice                 (on the other phone)
  heliograph device send --dir bob Alice "Meet at noon."
  heliograph device watch --dir alice

A terminal cannot have a device token of Apple or Google: those belong to apps on real devices. It
gets its pushes from `heliograph sim apns`, or, with --webpush, at an endpoint of its own, which
works with any notification router that can reach it and trusts its certificate.
"""
_PASSPHRASE = "HELIOGRAPH_DEVICE_PASSPHRASE"  # noqa: S105 - the name of a variable

Command = Callable[[Any, argparse.Namespace], Awaitable[int]]


def add(commands: Any) -> None:
    group = commands.add_parser(
        "device",
        help="be a phone: connect, send, and watch notifications arrive",
        description="A phone in a terminal: a real agent over real routers, with a store of its"
        " own in a directory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_init(actions)
    _add_register(actions)
    _add_verify(actions)
    _add_connect(actions)
    _add_send(actions)
    status = _add(actions, "status", "show the token, the contacts and the badge", _status)
    status.add_argument("--json", action="store_true", help="for programs")
    _add_mode(actions)
    _add_watch(actions)


def _add(actions: Any, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help, description=f"{help[0].upper()}{help[1:]}."
    )
    parser.add_argument("--dir", type=Path, required=True, help="the phone's directory")
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"encrypts the keys at rest; or set {_PASSPHRASE}",
    )
    parser.set_defaults(run=_runner(name, command))
    return parser


def _add_init(actions: Any) -> None:
    parser = _add(actions, "init", "make a phone", _init)
    parser.add_argument("--name", required=True, help="what contacts are told")
    parser.add_argument(
        "--smp",
        required=True,
        action="append",
        metavar="ADDRESS",
        help="a messaging router, smp://...; may be given again, the first is the default",
    )
    parser.add_argument(
        "--ntf", required=True, metavar="ADDRESS", help="the notification router, ntf://..."
    )


def _add_register(actions: Any) -> None:
    parser = _add(actions, "register", "register for pushes, and verify the token", _register)
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--apns", metavar="URL", help="the control URL of `heliograph sim apns`")
    sources.add_argument(
        "--webpush",
        metavar="HOST[:PORT]",
        nargs="?",
        const="127.0.0.1",
        help="an endpoint of the phone itself, on this address; the router must trust DIR/ca.crt",
    )
    sources.add_argument(
        "--token",
        metavar="TEXT",
        help="a token of a real device, such as 'apns_prod 00ff'; its pushes are shown there, not"
        " here: pass its code to `verify`",
    )
    parser.add_argument(
        "--mode", choices=("instant", "periodic"), default="instant", help="(%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="(%(default)s)"
    )


def _add_verify(actions: Any) -> None:
    parser = _add(actions, "verify", "verify the token with the code that a push brought", _verify)
    parser.add_argument(
        "--push",
        metavar="JSON",
        help="the push, or its notificationData; without it the provider is asked",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="(%(default)s)"
    )


def _add_connect(actions: Any) -> None:
    parser = _add(actions, "connect", "make a link for a contact, or join one", _connect)
    parser.add_argument("link", nargs="?", help="to join; without it one is made and printed")
    parser.add_argument("--name", help="what to call the contact (what it calls itself)")
    parser.add_argument(
        "--ask", action="store_true", help="whoever joins the link is a request to accept first"
    )
    parser.add_argument("--smp", metavar="ADDRESS", help="receive at this messaging router")


def _add_send(actions: Any) -> None:
    parser = _add(actions, "send", "send a message to a contact", _send)
    parser.add_argument("contact")
    parser.add_argument("text", nargs="?", default="", help="parts in #signs# are secret")
    parser.add_argument("--file", default="", metavar="NAME", help="name a file")
    parser.add_argument("--group", default="", metavar="NAME", help="as a message of this group")
    parser.add_argument("--call", choices=("audio", "video"), help="invite to a call instead")
    parser.add_argument("--quiet", action="store_true", help="cause no push")


def _add_mode(actions: Any) -> None:
    parser = _add(actions, "mode", "choose how to be notified, and what is shown", _mode)
    parser.add_argument("mode", nargs="?", choices=("instant", "periodic", "off"))
    parser.add_argument(
        "--preview", choices=("message", "contact", "hidden"), help="what notifications show"
    )


def _add_watch(actions: Any) -> None:
    parser = _add(actions, "watch", "show notifications as they arrive, until stopped", _watch)
    parser.add_argument(
        "--app",
        choices=("suspended", "active", "stopped"),
        default="suspended",
        help="the app's state: suspended (the extension handles pushes), active (the app receives"
        " by itself) or stopped (%(default)s)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="stop after this time")
    parser.add_argument("--json", action="store_true", help="one object a line, for programs")
    parser.add_argument(
        "--journal",
        type=Path,
        nargs="?",
        const=Path("journal"),
        metavar="PLACE",
        help="record what was shown, as hashes, for the pipeline (if PLACE is not given: in"
        " DIR/journal)",
    )


def _runner(name: str, command: Command) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        try:
            return loop.run(_guarded(name, command, options))
        except ModuleNotFoundError as exc:
            return _fail(name, f"{exc.name} is missing: install heliograph[sim]")

    return run


async def _guarded(name: str, command: Command, options: argparse.Namespace) -> int:
    from heliograph.agent.errors import AgentError
    from heliograph.db.errors import DatabaseError
    from heliograph.device.body import BodyError
    from heliograph.runtime import logs
    from heliograph.sim.phone import PhoneError
    from heliograph.wire.errors import WireError

    logs.set_up()
    try:
        return await command(await _passphrase(options), options)
    except (AgentError, BodyError, DatabaseError, PhoneError, WireError) as exc:
        return _fail(name, str(exc))
    except OSError as exc:
        return _fail(name, f"{exc.filename or ''} {exc.strerror or exc}".strip())
    except TimeoutError:
        return _fail(name, "it took too long: see that the routers and the provider run")


async def _passphrase(options: argparse.Namespace) -> str | None:
    if options.passphrase_file is None:
        return os.environ.get(_PASSPHRASE)
    file: Path = options.passphrase_file
    text = await asyncio.to_thread(file.read_text)
    return text.rstrip("\n")


@contextlib.asynccontextmanager
async def _phone(passphrase: str | None, options: argparse.Namespace) -> AsyncIterator[Any]:
    from heliograph.sim.phone import Phone

    phone = await Phone.open(options.dir, passphrase=passphrase)
    try:
        yield phone
    finally:
        await phone.close()


# Commands.


async def _init(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.sim.phone import Phone
    from heliograph.wire.addresses import Scheme, decode_address

    for address in options.smp:
        _check(decode_address(address).scheme is Scheme.SMP, f"{address} is not an smp:// address")
    ntf = decode_address(options.ntf)
    _check(ntf.scheme is Scheme.NTF, f"{options.ntf} is not an ntf:// address")
    phone = await Phone.create(
        options.dir, options.name, options.smp, options.ntf, passphrase=passphrase
    )
    await phone.close()
    kept = "encrypted" if passphrase else "not encrypted: see --passphrase-file"
    print(f"Made the phone of {plain(options.name)} in {options.dir}; its keys are {kept}.")
    print("Next: `heliograph device register`, for pushes, and `connect`, for contacts.")
    return 0


async def _register(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.device.states import NotificationsMode
    from heliograph.sim import phone_sources
    from heliograph.sim.phone_push import opened
    from heliograph.wire.tokens import TokenStatus, decode_token_text

    mode = NotificationsMode(options.mode)
    async with _phone(passphrase, options) as phone, phone.app() as app:
        if options.token is not None:
            await phone_sources.save_none(phone)
            status = await app.register(decode_token_text(options.token), mode)
            print(f"The token is {status.value}. Its code comes to the device that has it:")
            print("pass that push to `heliograph device verify --push`.")
            return 0
        if options.apns is not None:
            await phone_sources.save_apns(phone, options.apns)
        else:
            await phone_sources.save_web_push(phone, options.webpush)
        source = await phone_sources.load(phone)
        async with opened(source):
            status = await app.register_and_verify(source, mode, options.timeout)
    print(f"The token is {status.value}; notifications are {mode.value}.")
    return 0 if status is TokenStatus.ACTIVE else 1


async def _verify(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.sim import phone_sources
    from heliograph.sim.phone import PhoneError
    from heliograph.sim.phone_push import opened
    from heliograph.wire.push import VerificationPush, decode_push
    from heliograph.wire.tokens import TokenStatus

    async with _phone(passphrase, options) as phone, phone.app() as app:
        if options.push is not None:
            push = decode_push(options.push.encode())
            if not isinstance(push, VerificationPush):
                raise PhoneError("this push brings no code: one with `verification` is needed")
            status = await app.verify(push)
        else:
            source = await phone_sources.load(phone)
            async with opened(source):
                status = await app.verify_from(source, options.timeout)
    if status is None:
        raise PhoneError("the code is for another registration: wait for the next push")
    print(f"The token is {status.value}.")
    return 0 if status is TokenStatus.ACTIVE else 1


async def _connect(passphrase: Any, options: argparse.Namespace) -> int:
    async with _phone(passphrase, options) as phone, phone.app() as app:
        if options.link is None:
            print(await app.invite(options.name, ask=options.ask, smp=options.smp))
            print("Give this link to one person; `watch` shows when they join.", file=sys.stderr)
            return 0
        contact = await app.accept(options.link, options.name, smp=options.smp)
    print(f"Joined as {plain(contact.name)}; messages can be sent.")
    return 0


async def _send(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.device.body import Body, Call, Text
    from heliograph.device.chat import CallMedia

    body: Body = Text(options.text, options.file, options.group)
    if options.call is not None:
        body = Call(CallMedia(options.call))
    async with _phone(passphrase, options) as phone, phone.app() as app:
        sent = await app.send(options.contact, body, notification=not options.quiet)
    print("Sent." if sent else "Kept: it leaves when the contact has joined, or its router is up.")
    return 0


async def _status(passphrase: Any, options: argparse.Namespace) -> int:
    async with _phone(passphrase, options) as phone:
        status = await phone.status()
    if options.json:
        print(json.dumps(dict(describe(status))))
        return 0
    for name, value in describe(status):
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name:14} {shown}")
    return 0


async def _mode(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.device.states import NotificationsMode, PreviewMode
    from heliograph.sim.phone import PhoneError

    if options.mode is None and options.preview is None:
        raise PhoneError("give a mode (instant, periodic or off), --preview, or both")
    async with _phone(passphrase, options) as phone:
        if options.preview is not None:
            await phone.shared.set_preview(PreviewMode(options.preview))
            print(f"Notifications show: {options.preview}.")
        if options.mode is not None:
            async with phone.app() as app:
                status = await app.set_mode(NotificationsMode(options.mode))
            token = "deleted" if status is None else status.value
            print(f"Notifications are {options.mode}; the token is {token}.")
    return 0


async def _watch(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.device.states import AppState
    from heliograph.sim import phone_sources
    from heliograph.sim.phone import Screen, Watch
    from heliograph.sim.phone_push import opened

    done = asyncio.Event()
    shown = 0

    def show(content: Any) -> None:
        nonlocal shown
        shown += 1
        print(draw(content, as_json=options.json), flush=True)
        if options.count is not None and shown >= options.count:
            done.set()

    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, done.set)
    async with contextlib.AsyncExitStack() as stack:
        phone = await stack.enter_async_context(_phone(passphrase, options))
        if options.journal is not None:
            place = phone.directory / options.journal
            await stack.enter_async_context(phone_sources.journaled(phone, place))
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
        task = asyncio.create_task(Watch(phone, screen, app).run(source))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.timeout):
                await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return 1 if options.count is not None and shown < options.count else 0


def _check(condition: bool, message: str) -> None:
    from heliograph.sim.phone import PhoneError

    if not condition:
        raise PhoneError(message)


def _fail(name: str, message: str) -> int:
    print(f"heliograph device {name}: {message}", file=sys.stderr)
    return 1
