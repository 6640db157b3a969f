"""Push providers from a configuration, each device's kind with one of its own.

Kinds share nothing, so that trouble with one host never closes the connections to another.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.ntf.config import DeliveryOptions, NtfConfig
from heliograph.ntf.push.options import VAPID_FILE, ApnsOptions, FcmOptions
from heliograph.push.apns import ApnsApp, ApnsConfig, ApnsProvider
from heliograph.push.fcm import FcmConfig, FcmProvider, ServiceAccountError
from heliograph.push.http import HttpSettings
from heliograph.push.null import NullProvider
from heliograph.push.provider import Provider
from heliograph.push.vapid import Vapid, generate_vapid_key
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.runtime.errors import ConfigError, file_error
from heliograph.runtime.files import write_file
from heliograph.wire.ntf.tokens import PushProvider

__all__ = ["create_vapid_key", "load_vapid", "make_providers"]

logger = logging.getLogger(__name__)


ShareOf = Callable[[int], int]
"""Returns this process's share of a number, if several processes are the router."""


def make_providers(
    config: NtfConfig, directory: Path, share_of: ShareOf | None = None
) -> dict[PushProvider, Provider]:
    """Make all configured providers. Raises one `ConfigError` for all problems.

    They are for one of several processes if there is a `share_of`.
    """
    providers: dict[PushProvider, Provider] = {PushProvider.APNS_NULL: NullProvider()}
    problems: list[str] = []
    if config.pushes.http_client == "h2" and find_spec("h2") is None:
        problems.append("[pushes] http_client: h2 is missing: install heliograph[h2]")
    for make in (partial(_apns, share_of=share_of), partial(_fcm, share_of=share_of), _web_push):
        try:
            providers |= make(config, directory)
        except ConfigError as exc:
            problems += exc.problems
    if problems:
        raise ConfigError(problems)
    return providers


def create_vapid_key(directory: Path) -> None:
    """Make the key that push services will know the router by, unless there is one."""
    file = directory / VAPID_FILE
    if not file.exists():
        write_file(file, generate_vapid_key(), 0o600)


def load_vapid(config: NtfConfig, directory: Path) -> Vapid:
    """Load the VAPID key. Raises `ConfigError`."""
    name = config.push.webpush.vapid_key_file
    pem = _read(directory, name, "[push.webpush] vapid_key_file")
    try:
        return Vapid.from_pem(pem, _subject(config))
    except CryptoError as exc:
        raise ConfigError([f"[push.webpush] vapid_key_file: {directory / name}: {exc}"]) from None


def _apns(
    config: NtfConfig, directory: Path, share_of: ShareOf | None
) -> dict[PushProvider, Provider]:
    options = config.push.apns
    if not options.key_file:
        if options.allow_test_tokens:
            raise ConfigError(["[push.apns] key_file: must be set, because allow_test_tokens is"])
        return {}
    made = _apns_config(options, directory, config.pushes)
    if share_of is not None:
        made = replace(made, is_shared=True, http=replace(made.http, share_of=share_of))
    kinds = [PushProvider.APNS_PROD, PushProvider.APNS_DEV]
    if options.allow_test_tokens:
        kinds.append(PushProvider.APNS_TEST)
    try:
        return {kind: ApnsProvider(made) for kind in kinds}
    except CryptoError as exc:
        file = directory / options.key_file
        raise ConfigError([f"[push.apns] key_file: {file}: {exc}"]) from None


def _apns_config(options: ApnsOptions, directory: Path, pushes: DeliveryOptions) -> ApnsConfig:
    return ApnsConfig(
        _read(directory, options.key_file, "[push.apns] key_file"),
        options.key_id,
        options.team_id,
        options.topic,
        options.url,
        options.sandbox_url,
        options.test_url or None,
        HttpSettings(
            connections=options.connections,
            timeout=options.timeout_seconds,
            client=pushes.http_client,
            proxy=pushes.proxy,
            ca=_certificates(directory, options.ca_file, "[push.apns] ca_file"),
        ),
        tuple(_other_app(text, directory) for text in options.other_apps),
    )


def _other_app(text: str, directory: Path) -> ApnsApp:
    file, key_id, team_id, topic = text.split()
    key = _read(directory, file, "[push.apns] other_apps")
    try:
        P256Key.from_pem(key)
    except CryptoError as exc:
        raise ConfigError([f"[push.apns] other_apps: {directory / file}: {exc}"]) from None
    return ApnsApp(key, key_id, team_id, topic)


def _fcm(
    config: NtfConfig, directory: Path, share_of: ShareOf | None
) -> dict[PushProvider, Provider]:
    options: FcmOptions = config.push.fcm
    if not options.service_account_file:
        return {}
    key = "[push.fcm] service_account_file"
    made = FcmConfig(
        _read(directory, options.service_account_file, key),
        options.url,
        options.token_url or None,
        HttpSettings(
            share_of=share_of or int,
            client=config.pushes.http_client,
            proxy=config.pushes.proxy,
            ca=_certificates(directory, options.ca_file, "[push.fcm] ca_file"),
        ),
    )
    try:
        return {PushProvider.FCM: FcmProvider(made)}
    except ServiceAccountError as exc:
        file = directory / options.service_account_file
        raise ConfigError([f"{key}: {file}: {exc}"]) from None


def _web_push(config: NtfConfig, directory: Path) -> dict[PushProvider, Provider]:
    options = config.push.webpush
    if not options.enabled:
        return {}
    if options.vapid_key_file == VAPID_FILE and not (directory / VAPID_FILE).exists():
        # A directory of the reference, or of an older version: it must start all the same.
        logger.warning("there is no %s, so Web Push is off: vapid-key makes one", VAPID_FILE)
        return {}
    load_vapid(config, directory)
    made = WebPushConfig(
        _read(directory, options.vapid_key_file, "[push.webpush] vapid_key_file"),
        _subject(config),
        allow_private=config.network.allow_private,
        http=HttpSettings(
            connections=1,
            timeout=15.0,
            http2_only=False,
            thread="webpush",
            client=config.pushes.http_client,
            proxy=config.pushes.proxy,
            ca=_certificates(directory, options.ca_file, "[push.webpush] ca_file"),
        ),
    )
    return {PushProvider.WEB_PUSH: WebPushProvider(made)}


def _subject(config: NtfConfig) -> str:
    return config.push.webpush.subject or f"https://{config.listen.hosts[0]}"


def _certificates(directory: Path, name: str, key: str) -> bytes | None:
    if not name:
        return None
    pem = _read(directory, name, key)
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise ConfigError([f"{key}: {directory / name}: there is no PEM certificate in it"])
    return pem


def _read(directory: Path, name: str, key: str) -> bytes:
    file = directory / name
    try:
        return file.read_bytes()
    except OSError as exc:
        raise ConfigError([f"{key}: {file_error(exc, file, 'cannot be read')}"]) from exc
