"""Checks of the router's identity and of its credentials at push providers."""

import logging
import re
import time

from heliograph.crypto.jwt import sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.doctor.findings import (
    AsyncFindings,
    Finding,
    Findings,
    good,
    note,
    problem,
    warning,
)
from heliograph.doctor.subject import Subject
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.providers import load_vapid, make_providers
from heliograph.push.provider import (
    Accepted,
    Delivery,
    DeviceTokenInvalid,
    Provider,
    PushOutcome,
    RetryLater,
)
from heliograph.runtime.errors import ConfigError, IdentityError
from heliograph.runtime.expiry import describe_expiry, expiries
from heliograph.runtime.identity import CA_KEY, SERVER_CERTIFICATE, load_identity
from heliograph.wire.ntf.push import CheckMessagesPush
from heliograph.wire.ntf.tokens import APNSDeviceToken, DeviceToken, FcmDeviceToken, PushProvider

__all__ = ["check_identity", "check_providers", "reach_providers"]

FAKE_TOKEN = "00" * 32
"""A device token of the right form that no device has."""

_APPLE_ID = re.compile(r"[A-Z0-9]{10}")

_ADVICE = {
    "InvalidProviderToken": "key_file, key_id and team_id must be of one key; check the clock too",
    "ExpiredProviderToken": "set this machine's clock",
    "TopicDisallowed": "topic must be the bundle ID of an app of the key's team",
    "BadTopic": "topic must be the bundle ID of the app",
}


def check_identity(subject: Subject) -> Findings:
    directory = subject.directory
    try:
        identity = load_identity(directory, time.time())
    except IdentityError as exc:
        yield problem("keys", str(exc), "see 'Keys and certificates' in the runbook")
        return
    found = [(expiry, describe_expiry(expiry, time.time())) for expiry in expiries(identity)]
    for _, text in found:
        if text is not None:
            yield warning("certificate", *text)
    if not any(text for _, text in found):
        online = found[0][0]
        year = time.strftime("%Y-%m-%d", time.gmtime(online.at))
        yield good("certificate", f"keys and certificates belong together, valid until {year}")
    if (directory / f"{SERVER_CERTIFICATE}.new").exists():
        yield warning(
            "certificate",
            "a rotation of the certificate was interrupted",
            f"do it again: {subject.command('rotate-certificate')} --ca-key PATH",
        )
    if (directory / CA_KEY).exists():
        yield warning(
            "keys",
            f"{CA_KEY} is on this machine: anyone who reads it can impersonate this router",
            "move it to where you keep backups; the router does not need it",
        )


def check_providers(subject: Subject) -> Findings:
    """Check that the keys for push providers are well-formed and can sign."""
    config = subject.ntf
    if config is None:
        return
    try:
        providers = _quietly_made(config, subject)
    except ConfigError as exc:
        for text in exc.problems:
            advice = "put the provider's file there, readable for the router, or correct the path"
            yield problem("push providers", text, advice)
        return
    kinds = sorted(kind.text for kind in providers if kind is not PushProvider.APNS_NULL)
    if not kinds:
        yield problem(
            "push providers",
            "none is configured: no device can be woken",
            "set [push.apns], [push.fcm] or [push.webpush]; see 'Push providers' in the runbook",
        )
        return
    yield good("push providers", f"configured, and their keys can sign: {', '.join(kinds)}")
    yield from _apns_names(config)
    if not config.push.apns.key_file and not config.push.fcm.service_account_file:
        yield note(
            "push providers",
            "Web Push only: neither iPhones nor Android with Google can be woken",
            "if they should be: set [push.apns] and [push.fcm]",
        )


def _apns_names(config: NtfConfig) -> Findings:
    options = config.push.apns
    for key in ("key_id", "team_id"):
        value = getattr(options, key)
        if options.key_file and _APPLE_ID.fullmatch(value) is None:
            yield warning(
                "push providers",
                f'[push.apns] {key} = "{value}" is not ten capital letters and digits',
                "copy it from developer.apple.com; for a simulator this does not matter",
            )


async def reach_providers(subject: Subject) -> AsyncFindings:
    """Check that providers accept our credentials, with a push to a device that does not exist."""
    config = subject.ntf
    if config is None:
        return
    try:
        providers = _quietly_made(config, subject)
    except ConfigError:
        return  # `check_providers` reports it
    for kind, provider in providers.items():
        device = _fake_device(kind)
        if device is not None:
            try:
                yield _finding_of(kind, await _ask(provider, device))
            finally:
                await provider.close()


def _quietly_made(config: NtfConfig, subject: Subject) -> dict[PushProvider, Provider]:
    """Create the providers without the warning about a missing VAPID key."""
    log = logging.getLogger(make_providers.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        providers = make_providers(config, subject.directory)
    finally:
        log.setLevel(level)
    if config.push.apns.key_file:
        key = P256Key.from_pem((subject.directory / config.push.apns.key_file).read_bytes())
        sign_jwt(key, {"iss": config.push.apns.team_id}, kid=config.push.apns.key_id)
    if PushProvider.WEB_PUSH in providers:
        load_vapid(config, subject.directory).authorization("https://push.example.net")
    return providers


async def _ask(provider: Provider, device: DeviceToken) -> PushOutcome:
    delivery = Delivery(device, CheckMessagesPush(), int(time.time()))
    return await provider.send(delivery)


def _fake_device(kind: PushProvider) -> DeviceToken | None:
    match kind:
        case PushProvider.APNS_PROD | PushProvider.APNS_DEV | PushProvider.APNS_TEST:
            return APNSDeviceToken(kind, FAKE_TOKEN.encode())
        case PushProvider.FCM:
            return FcmDeviceToken(FAKE_TOKEN)
    return None  # Web Push has no place to ask, and the null provider is inside


def _finding_of(kind: PushProvider, outcome: PushOutcome) -> Finding:
    check = "push providers"
    match outcome:
        case Accepted() | DeviceTokenInvalid():
            return good(check, f"{kind.text} accepts our credentials")
        case RetryLater(connection=True):
            return problem(
                check,
                f"{kind.text} cannot be reached: {outcome.reason}",
                "see that this machine may make connections to port 443, and resolves names",
            )
        case RetryLater():
            return warning(
                check,
                f"{kind.text} answers {outcome.reason}",
                "wait: no push is lost",
            )
    advice = _ADVICE.get(outcome.reason, "see 'A provider refuses' in the runbook")
    return problem(check, f"{kind.text} refuses our pushes: {outcome.reason}", advice)
