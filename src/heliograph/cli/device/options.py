"""The options of each command of `heliograph device`."""

import argparse
from pathlib import Path

PASSPHRASE_VARIABLE = "HELIOGRAPH_DEVICE_PASSPHRASE"  # noqa: S105 - the name of a variable

STORE_VARIABLE = "HELIOGRAPH_DEVICE_STORE"


def profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user", metavar="NAME", help="the profile to use (default: the active one)"
    )
    parser.add_argument(
        "--user-password-file",
        type=Path,
        metavar="FILE",
        help="the password of --user, if that profile is hidden",
    )


def init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", required=True, help="the name that contacts see")
    parser.add_argument(
        "--smp",
        required=True,
        action="append",
        metavar="ADDRESS",
        help="a messaging router, smp://...; may be given again, the first is the default",
    )
    parser.add_argument(
        "--ntf",
        required=True,
        action="append",
        metavar="ADDRESS",
        help="a notification router, ntf://...; may be given again, a token is registered at one"
        " of them, chosen at random",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="postgresql://...: keep connections, messages and keys in an empty schema of this"
        " server, instead of a file in the directory; or set "
        f"{STORE_VARIABLE}, which other users of this machine cannot see",
    )


def user(parser: argparse.ArgumentParser) -> None:
    actions = ("list", "create", "switch", "hide", "unhide", "delete")
    parser.add_argument("action", choices=actions)
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="the password of a hidden profile: set by hide; needed by unhide, and by delete",
    )


def register(parser: argparse.ArgumentParser) -> None:
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
        "--mode",
        choices=("instant", "periodic"),
        default="instant",
        help="when to push (%(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="time limit (%(default)g)"
    )


def verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--push",
        metavar="JSON",
        help="the push, or its notificationData; without it the code is read from the provider",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="time limit (%(default)g)"
    )


def connect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "link", nargs="?", help="the link to join; without it, create one and print it"
    )
    parser.add_argument("--name", help="name of the contact here (default: the contact's own name)")
    parser.add_argument(
        "--ask", action="store_true", help="ask before the contact who joins is accepted"
    )
    parser.add_argument(
        "--accept", metavar="NAME", help="accept the contact who joined a link made with --ask"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="print the full invitation instead of a short link: it can be joined while its"
        " router is down",
    )
    parser.add_argument("--smp", metavar="ADDRESS", help="receive at this messaging router")


def send(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("contact")
    parser.add_argument("text", nargs="?", default="", help="parts in #signs# are secret")
    parser.add_argument("--file", default="", metavar="NAME", help="send a file's name")
    parser.add_argument(
        "--group", default="", metavar="NAME", help="send it as a message of this group"
    )
    parser.add_argument("--call", choices=("audio", "video"), help="invite to a call instead")
    parser.add_argument("--quiet", action="store_true", help="cause no push")


def respond(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("contact", help="the contact who asks or calls")
    parser.add_argument("action", choices=("accept", "reject"))


def mute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("chat", help="a contact, or #group")
    parser.add_argument("--off", action="store_true", help="unmute")


def mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", nargs="?", choices=("instant", "periodic", "off"))
    parser.add_argument(
        "--preview", choices=("message", "contact", "hidden"), help="what notifications show"
    )


def proxy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mode",
        nargs="?",
        choices=("always", "unknown", "unprotected", "never"),
        help="which messaging routers are reached through one of the phone's own: all, those that"
        " are not its own (the default), the same unless SOCKS hides the address, or none",
    )
    parser.add_argument(
        "--fallback",
        choices=("allow", "allow-protected", "prohibit"),
        help="connect directly if the proxy cannot reach a router at all: always, only if SOCKS"
        " hides the address (the default), or never",
    )


def move(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", help="the router's new address, with the same fingerprint as before"
    )


def watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--app",
        choices=("suspended", "active", "stopped"),
        default="suspended",
        help="the app's state: suspended (the extension handles pushes), active (the app receives"
        " by itself) or stopped (%(default)s)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="stop after N notifications")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="stop after this many seconds"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument(
        "--journal",
        type=Path,
        nargs="?",
        default=False,
        metavar="PLACE",
        help="record shown notifications, as hashes, for the pipeline, in this directory (default:"
        " DIR/journal)",
    )


def status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
