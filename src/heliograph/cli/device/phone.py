"""Commands of `heliograph device` about the phone itself: init, user, status, move, watch."""

import argparse
import json
import os

from heliograph.agent.agent import AgentSettings
from heliograph.cli.device.context import (
    check,
    open_app,
    open_phone,
    passphrase,
    read_secret,
    user_password,
    wait_idle,
)
from heliograph.cli.device.options import STORE_VARIABLE
from heliograph.cli.device.screen import describe, plain
from heliograph.db.dialects import sqlite_file
from heliograph.phone.core import PROXY_FALLBACK, PROXY_MODE, routed
from heliograph.phone.phone import Phone
from heliograph.wire.addresses import Scheme, decode_address


async def init(options: argparse.Namespace) -> int:
    for address in options.smp:
        check(decode_address(address).scheme is Scheme.SMP, f"{address} is not an smp:// address")
    for address in options.ntf:
        check(decode_address(address).scheme is Scheme.NTF, f"{address} is not an ntf:// address")
    secret = await passphrase(options)
    url = options.store or os.environ.get(STORE_VARIABLE)
    if url is not None:
        check(sqlite_file(url) is None, "--store is for PostgreSQL: its URL is postgresql://...")
    phone = await Phone.create(
        options.dir, options.name, options.smp, options.ntf, url=url, passphrase=secret
    )
    await phone.close()
    kept = "encrypted" if secret else "not encrypted: see --passphrase-file"
    print(f"Created the phone of {plain(options.name)} in {options.dir}.")
    print(f"Its keys and messages are {kept}.")
    print("Next: `heliograph device register`, for pushes, and `connect`, for contacts.")
    return 0


async def user(options: argparse.Namespace) -> int:
    check(options.action == "list" or options.name is not None, "give the profile's NAME")
    file = options.password_file
    password = None if file is None else await read_secret(file)
    needs_password = options.action in ("hide", "unhide")
    check(not needs_password or password is not None, "give the password by --password-file")
    async with open_phone(options) as phone:
        profiles, name = phone.profiles, options.name
        match options.action:
            case "create":
                await profiles.create(name)
            case "switch":
                await profiles.switch(name)
            case "hide":
                await profiles.hide(name, password or "")
            case "unhide":
                await profiles.unhide(name, password or "")
            case "delete":
                async with phone.app() as app:
                    await profiles.delete(app.agent, name, password)
                    await wait_idle(app)
        for profile in await profiles.list():
            mark = "*" if profile.is_active else " "
            print(f"{mark} {plain(profile.name)} ({profile.unread} unread)")
    return 0


async def status(options: argparse.Namespace) -> int:
    async with open_phone(options) as phone:
        found = await phone.status(options.user, await user_password(options))
    if options.json:
        print(json.dumps(dict(describe(found))))
        return 0
    for name, value in describe(found):
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name:14} {shown}")
    return 0


async def proxy(options: argparse.Namespace) -> int:
    async with open_phone(options) as phone:
        for name, value in ((PROXY_MODE, options.mode), (PROXY_FALLBACK, options.fallback)):
            if value is not None:
                await phone.store.set(name, value)
        routing = (await routed(phone.store, AgentSettings())).proxy
    print(f"Proxy: {routing.mode.value}; fallback: {routing.fallback.value}.")
    return 0


async def move(options: argparse.Namespace) -> int:
    async with open_app(options) as (_, app):
        if not await app.move_router(options.address):
            print("Stored. The rest is done when the router answers, while `heliograph device")
            print("watch` runs.")
            return 0
    print("Done: this phone uses the router at its new address.")
    return 0


async def watch(options: argparse.Namespace) -> int:
    # Imported late: the HTTP client would slow down every other command.
    from heliograph.cli.device.watch import watch as watch_phone

    async with open_phone(options) as phone:
        if options.user is not None:
            await phone.profiles.switch(options.user)
        return await watch_phone(phone, options)
