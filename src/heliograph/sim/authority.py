"""A certificate authority of one directory, for the TLS of the simulators.

P-256, because the HTTP clients that providers are reached with know no Ed25519 certificates. The
authority stays the same from start to start, so that clients may be told its file once.
"""

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=3650)
CA_FILE = "ca.crt"
KEY_FILE = "ca.key"


class Authority:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / CA_FILE
        key_file = directory / KEY_FILE
        if not (self.file.exists() and key_file.exists()):
            key = ec.generate_private_key(ec.SECP256R1())
            write_secret(key_file, _key_pem(key))
            self.file.write_bytes(_pem(_authority(key)))
        self._key = cast(
            ec.EllipticCurvePrivateKey,
            serialization.load_pem_private_key(key_file.read_bytes(), None),
        )
        self._certificate = x509.load_pem_x509_certificate(self.file.read_bytes())

    def server_context(self, *names: str) -> ssl.SSLContext:
        """A context for a server that is known by these host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(_pem(self._leaf(key, names)) + _key_pem(key))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    def _leaf(self, key: ec.EllipticCurvePrivateKey, names: tuple[str, ...]) -> x509.Certificate:
        return (
            _builder(x509.Name([]), self._certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), True)
            .sign(self._key, hashes.SHA256())
        )


def write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Heliograph simulators")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALIDITY)
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
