"""TLS as the SimpleX protocols use it: contexts, and the properties of a connection.

TLS 1.3 only, with CHACHA20-POLY1305, Ed25519 or Ed448 signatures, X25519 or X448 key exchange, no
resumption and no server names. The reference also speaks TLS 1.2 but never chooses it with a peer
that has 1.3, and the session id, `tls-unique`, is only a safe binding in 1.3.

Certificates are not verified here: any chain is accepted, on both sides. The user of a connection
passes `peer_chain` to `heliograph.crypto.certificates.identity_of` before trusting the peer.

What the ssl module cannot set is set by ctypes, on the one context and in the libssl that the ssl
module itself uses. Where that libssl cannot be reached (OpenSSL is linked into the interpreter),
`LIBSSL_REACHED` is False and this degrades safely: any TLS 1.3 cipher suite may be chosen, a client
with an unknown ALPN is served as one without ALPN, no client certificate is asked for, and
`certificate_sent` is always False, so that both ends take the client for an ordinary one.
"""

import _ssl
import asyncio
import contextlib
import ctypes
import fcntl
import functools
import os
import secrets
import socket
import ssl
import sys
import tempfile
import termios
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from heliograph.crypto.certificates import TlsCredentials, certificates_to_pem, private_key_to_pem

__all__ = [
    "LIBSSL_REACHED",
    "certificate_sent",
    "client_context",
    "negotiated_alpn",
    "peer_chain",
    "server_context",
    "session_id",
    "set_tcp_options",
    "unacknowledged",
    "unread",
]

CIPHER_SUITES = b"TLS_CHACHA20_POLY1305_SHA256"
GROUPS = b"X25519:X448"
SIGNATURES = b"ed25519:ed448"

KEEPALIVE_IDLE = 30
KEEPALIVE_INTERVAL = 15
KEEPALIVE_COUNT = 4

# From openssl/ssl.h and openssl/tls1.h.
_SSL_CTRL_SET_GROUPS_LIST = 92
_SSL_CTRL_SET_SIGALGS_LIST = 98
_SSL_CB_HANDSHAKE_DONE = 0x20
_SSL_TLSEXT_ERR_OK = 0
_SSL_TLSEXT_ERR_ALERT_FATAL = 2
_MAX_FINISHED_LENGTH = 64

_VerifyCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_InfoCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_AlpnCallback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_ubyte),
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_void_p,
)


def _load_libssl() -> ctypes.CDLL | None:
    path = getattr(_ssl, "__file__", None)
    if path is None or sys.implementation.name != "cpython":
        return None
    try:
        # Symbols are looked up in the ssl module's own dependencies, never in another libssl.
        lib = ctypes.CDLL(path)
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        lib.SSL_CTX_set_ciphersuites.argtypes = [pointer, text]
        lib.SSL_CTX_ctrl.argtypes = [pointer, ctypes.c_int, ctypes.c_long, text]
        lib.SSL_CTX_ctrl.restype = ctypes.c_long
        lib.SSL_CTX_set_alpn_select_cb.argtypes = [pointer, _AlpnCallback, pointer]
        lib.SSL_CTX_set_alpn_select_cb.restype = None
        lib.SSL_CTX_set_cert_verify_callback.argtypes = [pointer, _VerifyCallback, pointer]
        lib.SSL_CTX_set_cert_verify_callback.restype = None
        lib.SSL_CTX_set_info_callback.argtypes = [pointer, _InfoCallback]
        lib.SSL_CTX_set_info_callback.restype = None
        lib.SSL_get_signature_type_nid.argtypes = [pointer, ctypes.POINTER(ctypes.c_int)]
        lib.SSL_get_finished.argtypes = [pointer, pointer, ctypes.c_size_t]
        lib.SSL_get_finished.restype = ctypes.c_size_t
    except (OSError, AttributeError):
        return None
    return lib


_libssl = _load_libssl()

LIBSSL_REACHED = _libssl is not None


Pointer = Any
"""A pointer of `ctypes`, which has no public type for it."""


class _Context(ssl.SSLContext):
    """A context with a place for what OpenSSL has only the address of."""

    info_callback: object = None
    certificates_sent: deque[bytes]


def server_context(
    credentials: TlsCredentials, alpn: Sequence[str], *, request_client_certificate: bool
) -> ssl.SSLContext:
    """Make the context of a listener.

    A client that offers ALPN must offer one of ``alpn``, or its handshake fails with the alert
    ``no_application_protocol``; a client that offers none proceeds without.

    With ``request_client_certificate`` a client may present any chain, or none.
    """
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _configure(context)
    _load_credentials(context, credentials)
    if _libssl is None:
        context.set_alpn_protocols(alpn)
        return context
    if alpn:
        _libssl.SSL_CTX_set_alpn_select_cb(_address(context), _alpn_selector(tuple(alpn)), None)
    if request_client_certificate:
        context.verify_mode = ssl.CERT_OPTIONAL
        _libssl.SSL_CTX_set_cert_verify_callback(_address(context), _accept_any_chain, None)
    return context


def client_context(
    alpn: Sequence[str], credentials: TlsCredentials | None = None
) -> ssl.SSLContext:
    """Make the context of outgoing connections, which present ``credentials`` if asked to.

    It may be shared by connections to different servers.
    """
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the identity is pinned: system roots play no part
    _configure(context)
    if alpn:
        context.set_alpn_protocols(alpn)
    if credentials is not None:
        _load_credentials(context, credentials)
        _record_certificates_sent(context)
    return context


def peer_chain(transport: asyncio.BaseTransport) -> tuple[bytes, ...]:
    """Return the DER certificates the peer presented, leaf first, not verified."""
    ssl_object = _ssl_object(transport)
    if ssl_object.getpeercert(binary_form=True) is None:  # the chain would be a list of one None
        return ()
    if hasattr(ssl_object, "get_unverified_chain"):  # aiofastnet, and Python 3.13
        return tuple(ssl_object.get_unverified_chain())
    return tuple(
        certificate.public_bytes(_ssl.ENCODING_DER)
        for certificate in ssl_object._sslobj.get_unverified_chain()
    )


def session_id(transport: asyncio.BaseTransport) -> bytes:
    """Return the session id, `tls-unique`: 32 bytes, the same on both ends."""
    binding: bytes | None = _ssl_object(transport).get_channel_binding("tls-unique")
    if binding is None:
        raise ValueError("the TLS handshake is not complete")
    return binding


def negotiated_alpn(transport: asyncio.BaseTransport) -> str | None:
    """Return the ALPN protocol both ends agreed on, if any."""
    alpn: str | None = _ssl_object(transport).selected_alpn_protocol()
    return alpn


def certificate_sent(transport: asyncio.BaseTransport) -> bool:
    """Say whether this client's own certificate went to the server, that is, was asked for.

    Ask when the connection is made: only the latest connections of a context are remembered.
    """
    context = _ssl_object(transport).context
    return isinstance(context, _Context) and session_id(transport) in context.certificates_sent


def set_tcp_options(sock: socket.socket) -> None:
    """Send small blocks at once, and notice within 90 seconds that an idle peer is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, KEEPALIVE_IDLE)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


def unacknowledged(sock: socket.socket) -> int:
    """Return how many bytes the peer's machine has not acknowledged; 0 where this is unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def unread(sock: socket.socket) -> int:
    """Return how many received bytes are in the system's buffer."""
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def _ssl_object(transport: asyncio.BaseTransport) -> Any:
    # An ssl.SSLObject, or aiofastnet's look-alike.
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        raise ValueError("not a TLS connection")
    return ssl_object


def _address(context: ssl.SSLContext) -> int | None:
    # The SSL_CTX* is the first field of CPython's context object.
    return ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value


def _configure(context: _Context) -> None:
    context.certificates_sent = deque(maxlen=1024)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if _libssl is None:
        with contextlib.suppress(ssl.SSLError):  # before OpenSSL 3.2: then it is the first offered
            context.set_ecdh_curve("X25519")
        return
    address = _address(context)
    if not (
        _libssl.SSL_CTX_set_ciphersuites(address, CIPHER_SUITES)
        and _libssl.SSL_CTX_ctrl(address, _SSL_CTRL_SET_GROUPS_LIST, 0, GROUPS)
        and _libssl.SSL_CTX_ctrl(address, _SSL_CTRL_SET_SIGALGS_LIST, 0, SIGNATURES)
    ):
        raise ssl.SSLError("this OpenSSL lacks an algorithm the protocols need")


_accept_any_chain = _VerifyCallback(lambda _store_context, _argument: 1)


@functools.cache  # which also keeps the callback alive
def _alpn_selector(protocols: tuple[str, ...]) -> object:
    known = {protocol.encode() for protocol in protocols}

    def select(
        _connection: int,
        out: Pointer,
        out_length: Pointer,
        offer: int,
        offer_length: int,
        _argument: int,
    ) -> int:
        # The client's order decides, as in the reference. OpenSSL has checked the framing.
        offered = ctypes.string_at(offer, offer_length)
        start = 1
        while start < offer_length:
            length = offered[start - 1]
            if offered[start : start + length] in known:
                out[0] = offer + start
                out_length[0] = length
                return _SSL_TLSEXT_ERR_OK
            start += length + 1
        return _SSL_TLSEXT_ERR_ALERT_FATAL

    return _AlpnCallback(select)


def _record_certificates_sent(context: _Context) -> None:
    if _libssl is None:
        return
    lib, sent = _libssl, context.certificates_sent

    def on_progress(connection: int, where: int, _result: int) -> None:
        # A client signs its handshake only to prove a certificate it sent.
        if where & _SSL_CB_HANDSHAKE_DONE and lib.SSL_get_signature_type_nid(
            connection, ctypes.byref(ctypes.c_int())
        ):
            finished = ctypes.create_string_buffer(_MAX_FINISHED_LENGTH)
            length = lib.SSL_get_finished(connection, finished, _MAX_FINISHED_LENGTH)
            sent.append(finished.raw[:length])

    context.info_callback = _InfoCallback(on_progress)
    lib.SSL_CTX_set_info_callback(_address(context), context.info_callback)


def _load_credentials(context: ssl.SSLContext, credentials: TlsCredentials) -> None:
    # The ssl module reads keys from files only: never write this one in the clear.
    password = secrets.token_hex(32).encode()
    pem = certificates_to_pem(credentials.chain)
    pem += private_key_to_pem(credentials.private_key, password)
    with _readable_file(pem) as path:
        context.load_cert_chain(path, password=password)


@contextlib.contextmanager
def _readable_file(content: bytes) -> Iterator[str]:
    """Give ``content`` a path for a moment, in memory where the system can."""
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            file = stack.enter_context(open(os.memfd_create("credentials"), "wb"))
            path = f"/proc/self/fd/{file.fileno()}"
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            path = os.path.join(directory, "credentials")
            file = stack.enter_context(open(path, "wb"))
        file.write(content)
        file.flush()
        yield path
