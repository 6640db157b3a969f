"""Commands of `heliograph device` about the token: register, verify, mode."""

import argparse

from heliograph.agent.errors import RouterError
from heliograph.cli.device.context import app_of, check, open_app, open_phone, wait_idle
from heliograph.cli.device.screen import plain
from heliograph.device.states import PreviewMode
from heliograph.phone import sources as phone_sources
from heliograph.phone.app import AppSession
from heliograph.phone.errors import PhoneError
from heliograph.phone.phone import Phone
from heliograph.phone.push import opened
from heliograph.wire.ntf.push import VerificationPush, decode_push
from heliograph.wire.ntf.tokens import NotificationsMode, TokenStatus, decode_token_text

_LATER = "it is retried until the router can be reached, while `heliograph device watch` runs"
_ELSEWHERE = (
    "The code is pushed to the device that has the token: pass that push to"
    " `heliograph device verify --push`."
)
_NO_CODE = (
    "No code has arrived: check that the provider runs, and keep `heliograph device watch`"
    " running, or run `heliograph device register` again for another code."
)


async def register(options: argparse.Namespace) -> int:
    mode = NotificationsMode(options.mode)
    async with open_app(options) as (phone, app):
        if options.token is not None:
            token = decode_token_text(options.token)
            await phone_sources.save_none(phone)
            status = await app.register(token, mode)
            print(f"The token is {status.value}. {_ELSEWHERE}")
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
                check(not exc.temporary, f"{exc}; {_LATER}")
                raise
        await wait_idle(app)
    print(f"The token is {status.value}; notifications are {mode.value}.")
    return 0 if status is TokenStatus.ACTIVE else 1


async def verify(options: argparse.Namespace) -> int:
    async with open_app(options) as (phone, app):
        if options.push is not None:
            push = decode_push(options.push.encode())
            if not isinstance(push, VerificationPush):
                raise PhoneError("this push has no code: one with `verification` is needed")
            status = await app.verify(push)
        else:
            source = await phone_sources.load(phone)
            async with opened(source):
                status = await app.verify_from(source, options.timeout)
        if status is TokenStatus.ACTIVE:
            await wait_idle(app)
    if status is None:
        raise PhoneError("the code is for another registration: wait for the next push")
    print(f"The token is {status.value}.")
    return 0 if status is TokenStatus.ACTIVE else 1


async def mode(options: argparse.Namespace) -> int:
    check(
        options.mode is not None or options.preview is not None,
        "give a mode (instant, periodic or off), --preview, or both",
    )
    async with open_phone(options) as phone:
        if options.preview is not None:
            await phone.shared.set_preview(PreviewMode(options.preview))
            print(f"Notifications show: {options.preview}.")
        if options.mode is not None:
            async with app_of(phone, options) as app:
                return await change_mode(phone, app, NotificationsMode(options.mode))
    return 0


async def change_mode(phone: Phone, app: AppSession, mode: NotificationsMode) -> int:
    try:
        status = await app.set_mode(mode)
    except RouterError as exc:
        if not exc.temporary:
            raise
        print(f"Notifications will be {mode.value} once the router can be reached: keep")
        print(f"`heliograph device watch` running. ({plain(str(exc))})")
        return 0
    hint = None
    if status is not None and status is not TokenStatus.ACTIVE:
        status, hint = await _verify(phone, app, status)
    if hint is None:
        await wait_idle(app)
    token = "deleted" if status is None else status.value
    print(f"Notifications are {mode.value}; the token is {token}.")
    if hint is not None:
        print(hint)
    return 0 if hint is None else 1


async def _verify(
    phone: Phone, app: AppSession, status: TokenStatus
) -> tuple[TokenStatus, str | None]:
    """Return the token's status, and a hint for the user if it is not active."""
    try:
        source = await phone_sources.load(phone)
    except PhoneError:
        return status, _ELSEWHERE
    try:
        async with opened(source):
            return await app.verify_from(source), None
    except TimeoutError:
        return status, _NO_CODE
    except OSError:  # a running `watch` listens on the phone's endpoint, and verifies
        return (TokenStatus.ACTIVE, None) if await app.until_active() else (status, _NO_CODE)
