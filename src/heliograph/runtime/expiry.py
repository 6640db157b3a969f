"""Expiry of a router's certificates: a metric, and warnings in the log in time.

Certificates made by `init` practically never expire; those of other tools may.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph.crypto.certificates import expires_at
from heliograph.runtime.metrics import gauge
from heliograph.transport.handshake import ServerIdentity

__all__ = ["CertificateCollector", "Expiry", "describe_expiry", "expiries", "watch"]

logger = logging.getLogger(__name__)

DAY = 86_400.0
WARN_BEFORE = 30 * DAY
ONLINE, AUTHORITY = "online", "authority"


class Expiry(NamedTuple):
    certificate: str
    at: float


def expiries(identity: ServerIdentity) -> tuple[Expiry, Expiry]:
    """Return the expiry of the online certificate and of the authority's."""
    online, authority, *_ = (*identity.credentials.chain, identity.credentials.chain[-1])
    return Expiry(ONLINE, expires_at(online)), Expiry(AUTHORITY, expires_at(authority))


def describe_expiry(expiry: Expiry, now: float) -> tuple[str, str] | None:
    """Describe a certificate that has expired or expires soon, with advice; else return None."""
    left = expiry.at - now
    if left > WARN_BEFORE:
        return None
    day = time.strftime("%Y-%m-%d", time.gmtime(expiry.at))
    when = f"expires on {day}, in {int(left / DAY)} days" if left > 0 else f"expired on {day}"
    if expiry.certificate == ONLINE:
        return f"server.crt {when}", "run `rotate-certificate`, and restart the router"
    return (
        f"ca.crt {when}",
        (
            "it is the router's identity and cannot be replaced without a new address: set up a"
            " second router, and have clients move to it"
        ),
    )


class CertificateCollector(Collector):
    """Metrics of certificates. `part` is smp or ntf."""

    def __init__(self, part: str, identity: ServerIdentity) -> None:
        self._name = f"heliograph_{part}_certificate_expires_at_seconds"
        self._values = {expiry.certificate: expiry.at for expiry in expiries(identity)}

    def collect(self) -> Iterator[Metric]:
        doc = "Until when a certificate is valid, in Unix seconds."
        yield gauge(self._name, doc, self._values, "certificate")


async def watch(
    identity: ServerIdentity, clock: Callable[[], float] = time.time, interval: float = DAY
) -> None:
    """Warn at once and every day, as long as there is a reason."""
    while True:
        for expiry in expiries(identity):
            text = describe_expiry(expiry, clock())
            if text is not None:
                logger.warning("%s: %s", *text)
        await asyncio.sleep(interval)
