"""A router's keys and certificates, on disk.

    ca.key        the offline authority's key: needed only to rotate the leaf; keep it elsewhere
    ca.crt        the authority's certificate, whose hash is the router's identity
    server.key    the online leaf's key
    server.crt    the online leaf, signed by the authority
    fingerprint   the identity, as addresses have it

The names and formats are the reference's, so its directories can be used unchanged.
"""

import logging
from pathlib import Path

from heliograph.crypto.certificates import (
    CertificateError,
    SigningAlgorithm,
    TlsCredentials,
    certificates_from_pem,
    certificates_to_pem,
    create_authority,
    credentials_from_pem,
    expires_at,
    issue_leaf,
    private_key_from_pem,
    private_key_to_pem,
)
from heliograph.runtime.errors import IdentityError, file_error
from heliograph.runtime.files import make_private_directory, sync_directory, write_file
from heliograph.transport.handshake import ServerIdentity
from heliograph.wire.primitives import b64encode

__all__ = ["FILES", "create_identity", "load_identity", "rotate_leaf"]

logger = logging.getLogger(__name__)

CA_KEY = "ca.key"
CA_CERTIFICATE = "ca.crt"
SERVER_KEY = "server.key"
SERVER_CERTIFICATE = "server.crt"
FINGERPRINT = "fingerprint"
FILES = (CA_KEY, CA_CERTIFICATE, SERVER_KEY, SERVER_CERTIFICATE, FINGERPRINT)

_NEW = ".new"
_SECRET = 0o600
_MAX_NAME = 64


def create_identity(
    directory: Path,
    name: str,
    host: str,
    now: float,
    algorithm: SigningAlgorithm = SigningAlgorithm.ED25519,
) -> ServerIdentity:
    """Create all files. `name` is the authority's; existing files are not overwritten."""
    existing = [file for file in FILES if (directory / file).exists()]
    if existing:
        raise IdentityError(
            f"{directory} has {', '.join(existing)} already, and a router that loses its keys loses"
            " its address: choose another directory, or move these files away"
        )
    authority = create_authority(name, now, algorithm)
    leaf = issue_leaf(authority, _common_name(host), now, algorithm)
    try:
        make_private_directory(directory)
        write_file(directory / CA_KEY, private_key_to_pem(authority.private_key), _SECRET)
        write_file(directory / CA_CERTIFICATE, certificates_to_pem(authority.chain))
        write_file(directory / SERVER_KEY, private_key_to_pem(leaf.private_key), _SECRET)
        write_file(directory / SERVER_CERTIFICATE, certificates_to_pem(leaf.chain[:1]))
        identity = ServerIdentity.of(leaf, now)
        write_file(directory / FINGERPRINT, f"{b64encode(identity.fingerprint)}\n".encode())
    except OSError as exc:
        raise IdentityError(file_error(exc, directory, "cannot be written")) from exc
    return identity


def load_identity(directory: Path, now: float) -> ServerIdentity:
    """Read the files that TLS needs, and check that they belong together."""
    authority = _certificates(directory / CA_CERTIFICATE)
    key_file = directory / SERVER_KEY
    key = _read(key_file)
    _warn_if_open(key_file)
    if (directory / CA_KEY).exists():
        _warn_if_open(directory / CA_KEY)
    try:
        leaf = _matching_leaf(directory, key)
        chain = (leaf.chain[0], *authority)
        if expires_at(chain[0]) < now:
            raise IdentityError(
                f"{directory / SERVER_CERTIFICATE} has expired, or this machine's clock is wrong:"
                " run `rotate-certificate`, which keeps the address"
            )
        identity = ServerIdentity.of(TlsCredentials(chain, leaf.private_key), now)
    except CertificateError as exc:
        raise IdentityError(
            f"{directory}: {SERVER_KEY}, {SERVER_CERTIFICATE} and {CA_CERTIFICATE} do not belong"
            f" together, or are not valid now ({exc}): restore all three from one backup"
        ) from exc
    _check_fingerprint(directory / FINGERPRINT, identity.fingerprint)
    return identity


def rotate_leaf(directory: Path, host: str, now: float, ca_key: Path | None = None) -> None:
    """Replace the online leaf and its key; the address stays. `ca_key` is where its key is now.

    An interruption leaves the old leaf or the new one: the old files stay until the new are whole.
    A running router shows the new one after its next start.
    """
    authority = _certificates(directory / CA_CERTIFICATE)
    ca_key = ca_key or directory / CA_KEY
    if not ca_key.exists():
        raise IdentityError(
            f"{ca_key} is missing: only the authority's key can sign a new certificate. If it is"
            " kept elsewhere, as it should be, bring it here for a moment and name it with"
            " --ca-key PATH; if it is lost, the certificate that there is stays in use"
        )
    try:
        private_key = private_key_from_pem(_read(ca_key))
        leaf = issue_leaf(TlsCredentials(authority, private_key), _common_name(host), now)
        ServerIdentity.of(leaf, now)
    except CertificateError as exc:
        raise IdentityError(f"{ca_key} is not the key of {CA_CERTIFICATE}: {exc}") from exc
    key_file, certificate_file = directory / SERVER_KEY, directory / SERVER_CERTIFICATE
    try:
        write_file(_new(certificate_file), certificates_to_pem(leaf.chain[:1]))
        write_file(key_file, private_key_to_pem(leaf.private_key), _SECRET)
        _new(certificate_file).replace(certificate_file)
        sync_directory(directory)
    except OSError as exc:
        raise IdentityError(file_error(exc, directory, "cannot be written")) from exc


def _matching_leaf(directory: Path, key: bytes) -> TlsCredentials:
    file = directory / SERVER_CERTIFICATE
    try:
        return credentials_from_pem(_read(file), key)
    except CertificateError:
        # An interrupted rotation has replaced the key, but not the certificate.
        if not _new(file).exists():
            raise
        return credentials_from_pem(_read(_new(file)), key)


def _check_fingerprint(file: Path, expected: bytes) -> None:
    if file.exists() and _read(file).decode(errors="replace").strip() != b64encode(expected):
        raise IdentityError(
            f"{file} is not the fingerprint of {CA_CERTIFICATE}: clients know this router by the"
            f" former; restore the {CA_CERTIFICATE} that belongs to it, or remove {file}"
        )


def _certificates(file: Path) -> tuple[bytes, ...]:
    try:
        chain = certificates_from_pem(_read(file))
    except CertificateError as exc:
        raise IdentityError(f"{file}: {exc}: restore it from a backup") from exc
    return chain


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise IdentityError(
            f"{file} is missing: run `init` to make a new router, or restore it from a backup"
        ) from None
    except OSError as exc:
        raise IdentityError(file_error(exc, file, "cannot be read")) from exc


def _warn_if_open(file: Path) -> None:
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        logger.warning("%s can be read by others (mode %03o): run chmod 600 on it", file, mode)


def _new(file: Path) -> Path:
    return file.with_name(file.name + _NEW)


def _common_name(host: str) -> str:
    """Return a common name that fits into a certificate. Clients ignore it."""
    return host.encode()[:_MAX_NAME].decode(errors="ignore")
