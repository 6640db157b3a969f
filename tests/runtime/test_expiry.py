"""Certificates that expire soon are reported in the log and in the metrics."""

import asyncio
import contextlib
import logging
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from heliograph.crypto.certificates import expires_at
from heliograph.runtime import expiry
from heliograph.runtime.errors import IdentityError
from heliograph.runtime.expiry import (
    AUTHORITY,
    DAY,
    ONLINE,
    CertificateCollector,
    Expiry,
    describe_expiry,
)
from heliograph.runtime.identity import create_identity, load_identity, rotate_leaf
from heliograph.runtime.metrics import expose
from heliograph.transport.handshake import ServerIdentity

NOW = 1_800_000_000.0


@pytest.fixture
def short_lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerIdentity:
    """An authority that outlives us, and an online certificate for ten days."""
    create_identity(tmp_path, "NTF server CA", "localhost", NOW)
    monkeypatch.setattr("heliograph.crypto.certificates.VALIDITY", timedelta(days=10))
    rotate_leaf(tmp_path, "localhost", NOW)
    monkeypatch.undo()
    return load_identity(tmp_path, NOW)


def test_expiries(short_lived: ServerIdentity) -> None:
    online, authority = expiry.expiries(short_lived)
    assert online == Expiry(ONLINE, NOW + 10 * DAY)
    assert authority == Expiry(AUTHORITY, expires_at(short_lived.credentials.chain[1]))
    assert authority.at > NOW + 900_000 * DAY


@pytest.mark.parametrize(
    ("certificate", "days", "reported"),
    [
        (ONLINE, 31, None),
        (ONLINE, 29, "server.crt expires on 2027-02-13, in 29 days: run `rotate-certificate`"),
        (ONLINE, -1, "server.crt expired on 2027-01-14: run `rotate-certificate`"),
        (AUTHORITY, 31, None),
        (AUTHORITY, 1, "ca.crt expires on 2027-01-16, in 1 days: it is the router's identity"),
    ],
)
def test_words(certificate: str, days: int, reported: str | None) -> None:
    found = describe_expiry(Expiry(certificate, NOW + days * DAY), NOW)
    assert (None if found is None else ": ".join(found)[: len(reported or "")]) == reported


def test_metric(short_lived: ServerIdentity) -> None:
    registry = CollectorRegistry()
    registry.register(CertificateCollector("ntf", short_lived))
    name = "heliograph_ntf_certificate_expires_at_seconds"
    assert f'{name}{{certificate="online"}} {int(NOW + 10 * DAY)}\n' in expose(registry)


@pytest.mark.parametrize(("at", "warnings"), [(NOW, 2), (NOW - 300 * DAY, 0)])
async def test_watch_warns_every_day(
    short_lived: ServerIdentity, caplog: pytest.LogCaptureFixture, at: float, warnings: int
) -> None:
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return at

    caplog.set_level(logging.WARNING)
    task = asyncio.create_task(expiry.watch(short_lived, clock, 0.001))
    async with asyncio.timeout(10):
        while asked < 4:  # noqa: ASYNC110 - two certificates, two days
            await asyncio.sleep(0.001)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    found = [record for record in caplog.records if "rotate-certificate" in record.getMessage()]
    assert len(found) >= warnings
    assert bool(found) is bool(warnings)


def test_an_expired_certificate_is_not_loaded(short_lived: ServerIdentity, tmp_path: Path) -> None:
    later = NOW + 11 * DAY
    with pytest.raises(IdentityError, match=r"has expired.*rotate-certificate"):
        load_identity(tmp_path, later)
    rotate_leaf(tmp_path, "localhost", later)
    assert load_identity(tmp_path, later).fingerprint == short_lived.fingerprint
