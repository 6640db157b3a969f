"""Commands of `heliograph device` about contacts: connect, send, respond, mute."""

import argparse
import sys

from heliograph.cli.device.context import open_app, wait_idle
from heliograph.cli.device.screen import plain
from heliograph.device.chats.body import Body, Call, Text
from heliograph.device.chats.model import CallMedia
from heliograph.phone.app import Greeted


async def connect(options: argparse.Namespace) -> int:
    async with open_app(options) as (_, app):
        if options.accept is not None:
            _print_greeted("Accepted", await app.accept_request(options.accept))
            return 0
        if options.link is None:
            link = await app.invite(
                options.name, ask=options.ask, full=options.full, smp=options.smp
            )
            print(link)
            print("Give this link to one person; `watch` shows when they join.", file=sys.stderr)
            return 0
        greeted = await app.accept(options.link, options.name, smp=options.smp)
    _print_greeted("Joined as", greeted)
    return 0


def _print_greeted(what: str, greeted: Greeted) -> None:
    name = plain(greeted.contact.name)
    if greeted.is_sent:
        print(f"{what} {name}; messages can be sent.")
        return
    print(f"{what} {name}. The contact's router does not answer yet: what you send is stored, and")
    print("sent when it answers, while `heliograph device watch` runs.")


async def send(options: argparse.Namespace) -> int:
    body: Body = Text(options.text, options.file, options.group)
    if options.call is not None:
        body = Call(CallMedia(options.call))
    async with open_app(options) as (_, app):
        sent = await app.send(options.contact, body, notification=not options.quiet)
    print("Sent." if sent else "Stored: sent when the contact has joined and its router answers.")
    return 0


async def respond(options: argparse.Namespace) -> int:
    accept = options.action == "accept"
    async with open_app(options) as (_, app):
        answered = await app.respond(options.contact, accept, any_profile=options.user is None)
        await wait_idle(app)
    what = "The contact request" if answered == "request" else "The call"
    print(f"{what} is {'accepted' if accept else 'rejected'}.")
    return 0


async def mute(options: argparse.Namespace) -> int:
    async with open_app(options) as (_, app):
        await app.mute(options.chat, not options.off)
        await wait_idle(app)
    print(f"{plain(options.chat)} is {'no longer muted' if options.off else 'muted'}.")
    return 0
