"""The routers' addresses for apps: as text, and as QR codes that a phone scans."""

import io
from pathlib import Path

import segno

from heliograph.ntf.config import NtfConfig
from heliograph.ntf.providers import load_vapid
from heliograph.runtime.errors import OperatorError
from heliograph.runtime.process import running_address
from heliograph.system.layout import Layout
from heliograph.wire.addresses import decode_address, with_vapid

__all__ = ["addresses", "qr_svg"]


def addresses(layout: Layout, config: NtfConfig) -> dict[str, str | None]:
    """Return the address of each router, None if it does not run.

    That of the notification router has the VAPID key if it serves Web Push.
    """
    ntf = running_address(layout.ntf)
    return {
        "smp": running_address(layout.smp),
        "ntf": None if ntf is None else _with_key(ntf, config, layout.ntf),
    }


def _with_key(address: str, config: NtfConfig, directory: Path) -> str:
    if not config.push.webpush.enabled:
        return address
    try:
        return with_vapid(decode_address(address), load_vapid(config, directory).public_key)
    except OperatorError:
        return address


def qr_svg(text: str) -> bytes:
    """Return a QR code as an SVG picture without a size of its own."""
    picture = io.BytesIO()
    segno.make_qr(text).save(
        picture, kind="svg", xmldecl=False, omitsize=True, dark="#000", light="#fff"
    )
    return picture.getvalue()
