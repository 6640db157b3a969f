"""The options of each command of `heliograph device`."""

import argparse
from pathlib import Path


def init(parser: argparse.ArgumentParser) -> None:
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
        "--mode", choices=("instant", "periodic"), default="instant", help="(%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="(%(default)s)"
    )


def verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--push",
        metavar="JSON",
        help="the push, or its notificationData; without it the provider is asked",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="(%(default)s)"
    )


def connect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("link", nargs="?", help="to join; without it one is made and printed")
    parser.add_argument("--name", help="what to call the contact (what it calls itself)")
    parser.add_argument(
        "--ask", action="store_true", help="whoever joins the link is a request to accept first"
    )
    parser.add_argument(
        "--accept", metavar="NAME", help="accept one who joined a link made with --ask"
    )
    parser.add_argument("--smp", metavar="ADDRESS", help="receive at this messaging router")


def send(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("contact")
    parser.add_argument("text", nargs="?", default="", help="parts in #signs# are secret")
    parser.add_argument("--file", default="", metavar="NAME", help="name a file")
    parser.add_argument("--group", default="", metavar="NAME", help="as a message of this group")
    parser.add_argument("--call", choices=("audio", "video"), help="invite to a call instead")
    parser.add_argument("--quiet", action="store_true", help="cause no push")


def mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", nargs="?", choices=("instant", "periodic", "off"))
    parser.add_argument(
        "--preview", choices=("message", "contact", "hidden"), help="what notifications show"
    )


def move(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", help="where a router is reached now, with the identity that it had before"
    )


def watch(parser: argparse.ArgumentParser) -> None:
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


def status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
