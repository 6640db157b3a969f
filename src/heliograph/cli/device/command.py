"""`heliograph device`: a phone in a terminal, over real routers."""

import argparse
import errno
import importlib
import sys
from functools import partial
from pathlib import Path

from heliograph.cli.arguments import Subparsers
from heliograph.cli.device import options as device_options
from heliograph.transport import loop

_EPILOG = """\
Create a phone and watch its notifications:

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

_TAKEN = (
    "stop the other `heliograph device watch` of this phone, or, if the port is another program's,"
    " choose one with `heliograph device register --webpush HOST:PORT`"
)

_COMMANDS = (
    # name, help, function as module:name
    ("init", "create a phone", "phone:init"),
    ("user", "list, create, switch, hide, unhide or delete profiles", "phone:user"),
    ("register", "register for pushes, and verify the token", "token:register"),
    ("verify", "verify the token with the code of a push", "token:verify"),
    ("connect", "create a link for a contact, or join one", "chats:connect"),
    ("send", "send a message to a contact", "chats:send"),
    ("respond", "accept or reject a contact request or a call", "chats:respond"),
    ("mute", "stop notifications of a contact or a group", "chats:mute"),
    ("status", "show the token, the contacts and the badge", "phone:status"),
    ("mode", "choose how to be notified, and what is shown", "token:mode"),
    ("proxy", "choose when to send through a proxy", "phone:proxy"),
    ("move", "set a router's new host or port", "phone:move"),
    ("watch", "show notifications as they arrive, until stopped", "phone:watch"),
)


def add(commands: Subparsers) -> None:
    group = commands.add_parser(
        "device",
        help="run a phone: connect, send, and watch notifications arrive",
        description="A phone in a terminal: a real agent over real routers, with a store of its"
        " own in a directory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text, function in _COMMANDS:
        parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("--dir", type=Path, required=True, help="the phone's directory")
        parser.add_argument(
            "--passphrase-file",
            type=Path,
            metavar="FILE",
            help=f"encrypts keys and messages at rest; or set {device_options.PASSPHRASE_VARIABLE}",
        )
        if name not in ("init", "user"):
            device_options.profile(parser)
        getattr(device_options, name)(parser)
        parser.set_defaults(run=partial(_run, name, function))


def _run(name: str, function: str, options: argparse.Namespace) -> int:
    return loop.run(_guarded(name, function, options))


async def _guarded(name: str, function: str, options: argparse.Namespace) -> int:
    """Run a command, and turn every expected exception into one line."""
    from heliograph.agent.errors import AgentError
    from heliograph.db.errors import DatabaseError
    from heliograph.device.chats.body import BodyError
    from heliograph.device.ports import CoreUnavailable
    from heliograph.phone.errors import PhoneError
    from heliograph.runtime import logs
    from heliograph.wire.errors import WireError

    logs.set_up()
    # Imported late, to keep `heliograph --help` fast.
    module, _, attribute = function.partition(":")
    command = getattr(importlib.import_module(f"heliograph.cli.device.{module}"), attribute)
    try:
        return int(await command(options))
    except (AgentError, BodyError, CoreUnavailable, DatabaseError, PhoneError, WireError) as exc:
        return _fail(name, str(exc))
    except BrokenPipeError:
        raise  # the reader of our output closed it
    except TimeoutError:  # an OSError too, with an empty text
        return _fail(name, "timed out: check that the routers and the provider run")
    except OSError as exc:
        place = "" if exc.filename is None else f"{exc.filename}: "
        text = f"{place}{exc.strerror or exc}"
        if exc.errno == errno.EADDRINUSE:
            text += f": {_TAKEN}"
        return _fail(name, text or type(exc).__name__)


def _fail(name: str, message: str) -> int:
    print(f"heliograph device {name}: {message}", file=sys.stderr)
    return 1
