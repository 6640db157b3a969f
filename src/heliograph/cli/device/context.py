"""Helpers that the commands of `heliograph device` share: open the phone and its app."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from heliograph.cli.device.options import PASSPHRASE_VARIABLE
from heliograph.phone.app import AppSession
from heliograph.phone.errors import PhoneError
from heliograph.phone.phone import Phone


def check(condition: bool, message: str) -> None:
    if not condition:
        raise PhoneError(message)


async def passphrase(options: argparse.Namespace) -> str | None:
    """Return the passphrase of the phone's keys and messages, or None."""
    if options.passphrase_file is None:
        return os.environ.get(PASSPHRASE_VARIABLE)
    return await read_secret(options.passphrase_file)


async def user_password(options: argparse.Namespace) -> str | None:
    """Return the password of a hidden profile, or None."""
    file: Path | None = options.user_password_file
    return None if file is None else await read_secret(file)


async def read_secret(file: Path) -> str:
    try:
        text = await asyncio.to_thread(file.read_text, encoding="utf-8")
    except UnicodeDecodeError:
        raise PhoneError(f"{file} is not text: it must hold one line of UTF-8") from None
    return text.rstrip("\n")


@contextlib.asynccontextmanager
async def open_phone(options: argparse.Namespace) -> AsyncIterator[Phone]:
    async with Phone.open(options.dir, passphrase=await passphrase(options)) as phone:
        yield phone


@contextlib.asynccontextmanager
async def open_app(options: argparse.Namespace) -> AsyncIterator[tuple[Phone, AppSession]]:
    """Open the app as the profile of `--user`."""
    async with open_phone(options) as phone, app_of(phone, options) as app:
        yield phone, app


@contextlib.asynccontextmanager
async def app_of(phone: Phone, options: argparse.Namespace) -> AsyncIterator[AppSession]:
    async with phone.app(options.user, await user_password(options)) as app:
        yield app


async def wait_idle(app: AppSession) -> None:
    """Wait for pending work, and print a hint if some is left."""
    if not await app.wait_idle():
        print(
            "Some work is pending until routers can be reached: keep `heliograph device watch`"
            " running.",
            file=sys.stderr,
        )
