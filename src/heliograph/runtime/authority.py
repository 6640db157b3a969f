"""A certificate authority in a directory, for HTTPS endpoints of our own: simulators and phones.

The authority is kept between starts, so that clients can be configured with its file once.
"""

import ssl
import tempfile
import time
from pathlib import Path

from heliograph.crypto.certificates import (
    certificates_from_pem,
    certificates_to_pem,
    create_web_authority,
    issue_web_leaf,
)
from heliograph.crypto.p256 import P256Key
from heliograph.runtime.files import write_file

CA_FILE = "ca.crt"
KEY_FILE = "ca.key"
CLOCK_SKEW = 86_400.0
"""Seconds that certificates are valid before now, for clients whose clock is slow."""


class Authority:
    """The authority of a directory, which is created if it does not exist; `file` is for clients.

    It writes its certificate last: a directory without it is completed at the next start.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / CA_FILE
        key_file = directory / KEY_FILE
        if not (self.file.exists() and key_file.exists()):
            key = P256Key.generate()
            certificate = create_web_authority("Heliograph endpoints", key, _start())
            write_file(key_file, key.to_pem(), 0o600)
            write_file(self.file, certificates_to_pem([certificate]))
        self._key = P256Key.from_pem(key_file.read_bytes())
        [self._certificate] = certificates_from_pem(self.file.read_bytes())

    def server_context(self, *names: str) -> ssl.SSLContext:
        """Return the TLS context of a server with these host names and addresses."""
        key = P256Key.generate()
        leaf = issue_web_leaf(self._certificate, self._key, names, key, _start())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(certificates_to_pem([leaf]) + key.to_pem())
            file.flush()
            context.load_cert_chain(file.name)
        return context


def _start() -> float:
    return time.time() - CLOCK_SKEW
