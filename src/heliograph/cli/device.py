"""`heliograph device`: a phone in a terminal, over real routers."""

import argparse
import asyncio
import contextlib
import errno
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.cli import device_options
from heliograph.cli.device_screen import describe, plain
from heliograph.transport import loop

_EPILOG = """\
A phone of your own, and what it would show:

  heliograph device init --dir alice --name Alice --smp smp://... --ntf ntf://...
  heliograph device register --dir alice --apns http://127.0.0.1:PORT   (the simulator's control)
  heliograph device connect --dir alice --name Bob                      (prints a link for Bob)
  heliograph device connect --dir bob LINK --name Alice                 (on the other phone)
  heliograph device send --dir bob Alice "Meet at noon."
  heliograph device watch --dir alice
  heliograph device watch --dir alice --journal PLACE     (also records what was shown, as hashes:
                                                           the pipeline's ledger counts it as shown)

A terminal cannot have a device token of Apple or Google: those belong to apps on real devices. It
gets its pushes from `heliograph sim apns`, or, with --webpush, at an endpoint of its own, which
works with any notification router that can reach it and trusts its certificate.
"""
_PASSPHRASE = "HELIOGRAPH_DEVICE_PASSPHRASE"  # noqa: S105 - the name of a variable

_LATER = "it is done when the router can be reached, while `heliograph device watch` runs"

_TAKEN = (
    "stop the other `heliograph device watch` of this phone, or, if the port is another program's,"
    " choose one with `heliograph device register --webpush HOST:PORT`"
)

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
    for name, help, add_options, command in (
        ("init", "make a phone", device_options.init, _init),
        (
            "register",
            "register for pushes, and verify the token",
            device_options.register,
            _register,
        ),
        (
            "verify",
            "verify the token with the code that a push brought",
            device_options.verify,
            _verify,
        ),
        ("connect", "make a link for a contact, or join one", device_options.connect, _connect),
        ("send", "send a message to a contact", device_options.send, _send),
        ("status", "show the token, the contacts and the badge", device_options.status, _status),
        ("mode", "choose how to be notified, and what is shown", device_options.mode, _mode),
        ("move", "say that a router moved to another host or port", device_options.move, _move),
        ("watch", "show notifications as they arrive, until stopped", device_options.watch, _watch),
    ):
        add_options(_add(actions, name, help, command))


def _add(actions: Any, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help, description=f"{help[0].upper()}{help[1:]}."
    )
    parser.add_argument("--dir", type=Path, required=True, help="the phone's directory")
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"encrypts keys and messages at rest; or set {_PASSPHRASE}",
    )
    parser.set_defaults(run=_runner(name, command))
    return parser


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
    from heliograph.device.ports import CoreUnavailable
    from heliograph.runtime import logs
    from heliograph.sim.phone import PhoneError
    from heliograph.wire.errors import WireError

    logs.set_up()
    try:
        return await command(await _passphrase(options), options)
    except (AgentError, BodyError, CoreUnavailable, DatabaseError, PhoneError, WireError) as exc:
        return _fail(name, str(exc))
    except BrokenPipeError:
        raise  # whoever reads what we print has gone
    except TimeoutError:  # an OSError too, with nothing to say
        return _fail(name, "it took too long: see that the routers and the provider run")
    except OSError as exc:
        said = f"{exc.filename or ''} {exc.strerror or exc}".strip()
        if exc.errno == errno.EADDRINUSE:
            said += f": {_TAKEN}"
        return _fail(name, said or type(exc).__name__)


async def _passphrase(options: argparse.Namespace) -> str | None:
    if options.passphrase_file is None:
        return os.environ.get(_PASSPHRASE)
    file: Path = options.passphrase_file
    try:
        text = await asyncio.to_thread(file.read_text, encoding="utf-8")
    except UnicodeDecodeError:
        _check(False, f"{file} is no text: a passphrase is a line of UTF-8")
        raise
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
    print(f"Made the phone of {plain(options.name)} in {options.dir}.")
    print(f"Its keys and messages are {kept}.")
    print("Next: `heliograph device register`, for pushes, and `connect`, for contacts.")
    return 0


async def _register(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.agent.errors import RouterError
    from heliograph.device.states import NotificationsMode
    from heliograph.sim import phone_sources
    from heliograph.sim.phone_push import opened
    from heliograph.wire.tokens import TokenStatus, decode_token_text

    mode = NotificationsMode(options.mode)
    async with _phone(passphrase, options) as phone, phone.app() as app:
        if options.token is not None:
            token = decode_token_text(options.token)
            await phone_sources.save_none(phone)
            status = await app.register(token, mode)
            print(f"The token is {status.value}. Its code comes to the device that has it:")
            print("pass that push to `heliograph device verify --push`.")
            return 0
        if options.apns is not None:
            await phone_sources.check_apns(options.apns)
            await phone_sources.save_apns(phone, options.apns)
        else:
            await phone_sources.save_web_push(phone, options.webpush)
        source = await phone_sources.load(phone)
        async with opened(source):
            try:
                status = await app.register_and_verify(source, mode, options.timeout)
            except RouterError as exc:
                _check(not exc.temporary, f"{exc}; {_LATER}")
                raise
        await _settle(app)
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
        if status is TokenStatus.ACTIVE:
            await _settle(app)
    if status is None:
        raise PhoneError("the code is for another registration: wait for the next push")
    print(f"The token is {status.value}.")
    return 0 if status is TokenStatus.ACTIVE else 1


async def _connect(passphrase: Any, options: argparse.Namespace) -> int:
    async with _phone(passphrase, options) as phone, phone.app() as app:
        if options.accept is not None:
            _say_greeted("Accepted", await app.accept_request(options.accept))
            return 0
        if options.link is None:
            print(await app.invite(options.name, ask=options.ask, smp=options.smp))
            print("Give this link to one person; `watch` shows when they join.", file=sys.stderr)
            return 0
        greeted = await app.accept(options.link, options.name, smp=options.smp)
    _say_greeted("Joined as", greeted)
    return 0


def _say_greeted(what: str, greeted: Any) -> None:
    name = plain(greeted.contact.name)
    if greeted.is_sent:
        print(f"{what} {name}; messages can be sent.")
        return
    print(f"{what} {name}, who cannot know it yet: the contact's router does not answer. What you")
    print("send is kept, and leaves when it answers, while `heliograph device watch` runs.")


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
                return await _change_mode(phone, app, NotificationsMode(options.mode))
    return 0


async def _move(passphrase: Any, options: argparse.Namespace) -> int:
    async with _phone(passphrase, options) as phone, phone.app() as app:
        if not await app.move_router(options.address):
            print("Known. The rest is done when the router answers, while `heliograph device")
            print("watch` runs.")
            return 0
    print("Known; this phone goes on there.")
    return 0


async def _change_mode(phone: Any, app: Any, mode: Any) -> int:
    from heliograph.agent.errors import RouterError
    from heliograph.wire.tokens import TokenStatus

    try:
        status = await app.set_mode(mode)
    except RouterError as exc:
        if not exc.temporary:
            raise
        print(f"Notifications will be {mode.value}: it changes when the router can be reached, and")
        print(f"`heliograph device watch` sees to it. ({plain(str(exc))})")
        return 0
    hint = None
    if status is not None and status is not TokenStatus.ACTIVE:
        status, hint = await _verified(phone, app, status)
    if hint is None:
        await _settle(app)
    token = "deleted" if status is None else status.value
    print(f"Notifications are {mode.value}; the token is {token}.")
    if hint is not None:
        print(hint)
    return 0 if hint is None else 1


async def _verified(phone: Any, app: Any, status: Any) -> tuple[Any, str | None]:
    """The token's status, and what is to be done if it is not active."""
    from heliograph.sim import phone_sources
    from heliograph.sim.phone import PhoneError
    from heliograph.sim.phone_push import opened
    from heliograph.wire.tokens import TokenStatus

    try:
        source = await phone_sources.load(phone)
    except PhoneError:
        return status, (
            "Its code comes to the device that has it: pass that push to"
            " `heliograph device verify --push`."
        )
    again = (
        "Its code has not come: see that the provider runs, and leave `heliograph device watch`"
        " running, or run `heliograph device register` again to be sent another."
    )
    try:
        async with opened(source):
            return await app.verify_from(source), None
    except TimeoutError:
        return status, again
    except OSError:  # a `watch` has the phone's endpoint, and verifies
        return (TokenStatus.ACTIVE, None) if await app.until_active() else (status, again)


async def _settle(app: Any) -> None:
    if not await app.settle():
        print(
            "Something is left to do when routers can be reached: `heliograph device watch` sees"
            " to it.",
            file=sys.stderr,
        )


async def _watch(passphrase: Any, options: argparse.Namespace) -> int:
    from heliograph.cli.device_watch import watch

    async with _phone(passphrase, options) as phone:
        return await watch(phone, options)


def _check(condition: bool, message: str) -> None:
    from heliograph.sim.phone import PhoneError

    if not condition:
        raise PhoneError(message)


def _fail(name: str, message: str) -> int:
    print(f"heliograph device {name}: {message}", file=sys.stderr)
    return 1
