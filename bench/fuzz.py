"""`python -m bench.fuzz`: mutated and random inputs for every parser that sees a peer's bytes.

Only `WireError` and `CryptoError` may escape, and whatever a parser accepts must encode, decode to
the same and encode to the same again. Inputs are mutations of the vectors and of the samples below.
"""

import argparse
import json
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, TypeVar
from zlib import crc32

from cryptography.utils import CryptographyDeprecationWarning

from heliograph.crypto import (
    authorization,
    boxes,
    certificates,
    jwt,
    keys,
    p256,
    session_keys,
    webpush,
)
from heliograph.crypto.errors import CryptoError
from heliograph.wire import (
    addresses,
    errors,
    explain,
    handshakes,
    keys as wire_keys,
    ntf,
    primitives,
    smp,
    table,
    transmissions,
)
from heliograph.wire.errors import WireError
from heliograph.wire.ntf import push, tokens
from heliograph.wire.primitives import Codec, Reader
from heliograph.wire.requests import Failure, Reply, Request, decode_replies, decode_requests
from heliograph.wire.smp import confirmations, fields, forwarding, messages
from heliograph.wire.table import Table
from heliograph.wire.transmissions import RawTransmission, Session
from heliograph.wire.versions import NTF_VERSIONS, SMP_VERSIONS, version_range
from tests.vectors.files import Line, read_lines, vector_files

T = TypeVar("T")

LONGEST_SAMPLE = 2000  # longer ones make the run slower, not better
CHUNK = 200  # inputs for one parser before the next has its turn

SESSION_ID = bytes(32)
NTF_SESSIONS = [Session.ntf(SESSION_ID, v) for v in range(NTF_VERSIONS.min, NTF_VERSIONS.max + 1)]
SMP_SESSIONS = [Session.smp(SESSION_ID, v) for v in range(SMP_VERSIONS.min, SMP_VERSIONS.max + 1)]
SESSIONS = [*NTF_SESSIONS, *SMP_SESSIONS]
HANDSHAKES = [(p, sender) for p in ("ntf", "smp") for sender in ("server", "client", "service")]


@dataclass
class Target:
    """A parser, and a check of what it accepted: there no exception is expected at all."""

    name: str
    samples: list[bytes]
    decode: Callable[[bytes], Any]
    check: Callable[[Any], None] | None = None
    share: float = 1.0
    inputs: int = 0
    accepted: int = 0
    failure: str = ""

    def run(self, data: bytes) -> None:
        self.inputs += 1
        try:
            value = self.decode(data)
        except (WireError, CryptoError):
            return
        self.accepted += 1
        if self.check is not None:
            self.check(value)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def round_trip(
    decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        encoded = encode(value)
        again = encode(decode(encoded))
        expect(again == encoded, f"encodes to {encoded.hex()}, then to {again.hex()}")

    return check


def pick(choices: Sequence[Any], data: bytes) -> Any:
    """One that depends only on the input, so that the input alone reproduces a failure."""
    return choices[crc32(data) % len(choices)]


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# Samples


def lines(kind: str) -> Iterator[Line]:
    return (
        line for path in vector_files() for line in read_lines(path) if line.get("kind") == kind
    )


def hexes(name: str, *kinds: str) -> list[bytes]:
    found = (bytes.fromhex(line[name]) for kind in kinds for line in lines(kind) if name in line)
    return [data for data in found if len(data) <= LONGEST_SAMPLE]


def texts(name: str, *kinds: str) -> list[bytes]:
    return [line[name].encode() for kind in kinds for line in lines(kind) if name in line]


def recorded(layer: str, name: str) -> list[bytes]:
    found = {
        bytes.fromhex(line[name])
        for path in vector_files()
        for line in read_lines(path)
        if line.get("layer") == layer and name in line and len(line[name]) <= 2 * LONGEST_SAMPLE
    }
    return sorted(found)


def recorded_handshakes() -> list[bytes]:
    """Return the contents of the first two blocks of each connection."""
    contents = []
    for path in vector_files():
        seen: dict[str, int] = {}
        for line in read_lines(path):
            if line.get("layer") == "raw_block" and seen.get(line["conn"], 0) < 2:
                seen[line["conn"]] = seen.get(line["conn"], 0) + 1
                contents.append(primitives.unpad(bytes.fromhex(line["hex"])))
    return contents


def recorded_chains() -> list[tuple[bytes, ...]]:
    chains = {
        tuple(bytes.fromhex(cert["der"]) for cert in line["certs"])
        for path in vector_files()
        for line in read_lines(path)
        if line.get("layer") == "tls" and line["certs"]
    }
    return sorted(chains)


ERRORS = [
    *(code.value.encode() for code in errors.ErrorCode),
    *(b"BLOCKED reason=spam", b'BLOCKED reason=content,notice={"ttl":86400}', b"STORE a b"),
    *(b"PROXY BASIC_AUTH", b"PROXY PROTOCOL CMD SYNTAX", b"PROXY PROTOCOL PROXY NO_SESSION"),
    *(b"PROXY BROKER TIMEOUT", b"PROXY BROKER RESPONSE \x03abc", b"PROXY BROKER NETWORK"),
    *(b"PROXY BROKER NETWORK TLS \x03abc", b"PROXY BROKER TRANSPORT HANDSHAKE IDENTITY"),
]
TRANSPORT_ERRORS = [error.value.encode() for error in errors.TransportError]
ADDRESS = b"smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI="
HOSTS = [
    *(b"127.0.0.1", b"256.1.1.1", b"::1", b"[2001:db8::1]", b"[::ffff:192.0.2.1]", b"abc.onion"),
    *(b"smp.example", b"face:b00c::", b"1.2.3.4.5", b"fe80::1%eth0", b"\xc3\xbc.example"),
]
WEB_PUSH = b"WP\x0cpush.example\x03443\x05/a?b=\x10" + bytes(16) + b"\x41\x04" + bytes(64)
WEB_PUSH_TEXT = tokens.encode_token_text(tokens.device_token.decode(Reader(WEB_PUSH))).encode()
INFO = [
    b'{"qiSnd":true,"qiNtf":false,"qiSize":3}',
    b'{"qiSnd":true,"qiNtf":false,"qiSub":{"qSubThread":"subPending"},"qiSize":3}',
    b'{"qiSnd":false,"qiNtf":true,"qiSize":0,"qiMsg":{"msgId":"aWQ=","msgType":"message"}}',
]
PUSHES = [
    push.encode_apns(push.VerificationPush(bytes(24), b"box")),
    push.encode_apns(push.MessagePush(bytes(24), b"box")),
    push.encode_apns(push.CheckMessagesPush()),
]
ED = wire_keys.SPKI_PREFIX[wire_keys.Algorithm.ED25519] + bytes(32)
X = wire_keys.SPKI_PREFIX[wire_keys.Algorithm.X25519] + bytes(32)
SMP_SAMPLES = [
    b"NEW \x2c" + ED + b"\x2c" + X + b"1\x02pwC1M1\x01s\x00\x01f\x00\x01u1\x2c" + ED + b"\x2c" + X,
    b"SUBS " + bytes(8) + b"\x10" + bytes(16),
    *(b"GET", b"OFF", b"QUE", b"ALLS", b"SEND T body", b"SKEY \x2c" + ED, b"MSG \x02idbox"),
    b"IDS \x01r\x01s\x2c" + X + b"1M1\x01l1\x01v1\x01n\x2c" + X,
    b"SOKS " + bytes(8) + b"\x10" + bytes(16),
    *(b"INFO " + info for info in INFO),
    *(b"ERR " + error for error in ERRORS),
]


# Targets


def codec_target(name: str, codec: Codec[Any], samples: Sequence[bytes] = ()) -> Target:
    def decode(data: bytes) -> Any:
        return codec.decode(Reader(data))

    return Target(name, [*samples], decode, round_trip(decode, codec.encode))


def text_target(
    name: str, parse: Callable[[str], Any], encode: Callable[[Any], str], samples: list[bytes]
) -> Target:
    def decode(data: bytes) -> Any:
        return parse(as_text(data))

    return Target(
        name,
        samples,
        decode,
        round_trip(decode, lambda value: encode(value).encode("utf-8", "surrogateescape")),
    )


def table_target(
    name: str, table: Table[Any], sessions: list[Session], samples: list[bytes]
) -> Target:
    """Decode in one version of all, and encode in every one."""

    def decode(data: bytes) -> Any:
        version = pick(sessions, data).version
        value = table.decode(data, version)
        table.explain(data, version)
        return value

    def check(value: Any) -> None:
        for version in (session.version for session in sessions):
            decode_at = partial(table.decode, version=version)
            round_trip(decode_at, partial(table.encode, version=version))(value)

    return Target(name, samples, decode, check, share=3)


def codec_targets() -> Iterator[Target]:
    short, large = primitives.short, primitives.large
    yield codec_target("primitives.boolean", primitives.boolean, [b"T", b"F"])
    yield codec_target("primitives.u8", primitives.u8, [b"\x01"])
    yield codec_target("primitives.u16", primitives.u16, [b"\x01\x02"])
    yield codec_target("primitives.u32", primitives.u32, [bytes(4)])
    yield codec_target("primitives.i64", primitives.i64, [bytes(8)])
    yield codec_target("primitives.time", primitives.time, [bytes(8)])
    yield codec_target("primitives.tail", primitives.tail, [b"abc"])
    yield codec_target("primitives.short", short, [b"\x03abc"])
    yield codec_target("primitives.large", large, [b"\x00\x03abc"])
    yield codec_target("primitives.maybe", primitives.maybe(short), [b"0", b"1\x03abc"])
    yield codec_target("primitives.list_of", primitives.list_of(large), [b"\x01\x00\x03abc"])
    yield codec_target("primitives.raw", primitives.raw(24), [bytes(24)])
    yield codec_target("primitives.literal", primitives.literal(b"T"), [b"T"])
    chain = b"\x02\x00\x04leaf\x00\x02ca\x00\x06signed"
    yield codec_target("handshakes.cert_chain_key", handshakes.cert_chain_key, [chain])
    yield codec_target("versions.version_range", version_range, [b"\x00\x01\x00\x03"])
    public = hexes("public_smp", "keypair")
    yield codec_target("keys.auth_public_key", wire_keys.auth_public_key, public)
    yield codec_target("keys.x25519_public_key", wire_keys.x25519_public_key, public)
    private = hexes("smp", "private_auth_key_smp")
    yield codec_target("keys.auth_private_key", wire_keys.auth_private_key, private)
    yield codec_target("table.error_type", table.error_type, ERRORS)
    yield codec_target("fields.msg_flags", fields.msg_flags, [b"T ", b"Fx body"])
    yield codec_target("fields.subscription_mode", fields.subscription_mode, [b"S", b"C"])
    yield codec_target("fields.queue_mode", fields.queue_mode, [b"M", b"C"])
    yield codec_target("fields.sender_can_secure", fields.sender_can_secure, [b"T", b"F"])
    yield codec_target(
        "fields.sender_can_secure_request", fields.sender_can_secure_request, [b"T", b"F"]
    )
    yield codec_target("fields.queue_request", fields.queue_request, [b"M0", b"C1\0\0\0\0\0\0"])
    yield codec_target("fields.password", fields.password, [b"0", b"1\x02pw"])
    yield codec_target("fields.legacy_password", fields.legacy_password, [b"A\x02pw"])
    ntf_creds = b"1\x2c" + ED + b"\x2c" + X
    yield codec_target("fields.new_ntf_creds", fields.new_ntf_creds, [b"0", ntf_creds])
    yield codec_target("fields.server_ntf_creds", fields.server_ntf_creds, [b"1\x01i\x2c" + X])
    yield codec_target("fields.queue_info", fields.queue_info, INFO)
    binary_hosts = [bytes((len(host),)) + host for host in HOSTS]
    yield codec_target("addresses.host_codec", addresses.host_codec, binary_hosts)
    servers = hexes("hex", "smp_server_binary")
    yield codec_target("addresses.smp_server", addresses.smp_server, servers)
    queues = [server + b"\x02id" for server in servers]
    yield codec_target("addresses.smp_queue_ntf", addresses.smp_queue_ntf, queues)
    device_tokens = [*hexes("smp", "device_token"), WEB_PUSH]
    yield codec_target("tokens.device_token", tokens.device_token, device_tokens)
    yield codec_target("tokens.token_status", tokens.token_status, hexes("hex", "tkn_status"))
    yield codec_target(
        "tokens.subscription_status", tokens.subscription_status, hexes("hex", "sub_status")
    )


def text_targets() -> Iterator[Target]:
    base64 = texts("public_str", "keypair")
    yield text_target("primitives.b64decode", primitives.b64decode, primitives.b64encode, base64)
    uris = [*texts("uri", "server_uri"), *(ADDRESS + b"@" + host + b":443" for host in HOSTS)]
    uris += [ADDRESS + b":pw@" + host for host in HOSTS]
    yield text_target("addresses.decode_address", addresses.decode_address, str, uris)
    yield text_target("addresses.decode_host", addresses.decode_host, str, HOSTS)
    queues = [uri + b"/aWQ=" for uri in uris]
    yield Target(
        "addresses.decode_queue",
        queues,
        lambda data: addresses.decode_queue(as_text(data)),
        lambda queue: expect(bool(addresses.encode_queue(queue)), "an empty address"),
    )
    token_texts = [*texts("str", "device_token", "device_token_str"), WEB_PUSH_TEXT]
    yield text_target(
        "tokens.decode_token_text", tokens.decode_token_text, tokens.encode_token_text, token_texts
    )

    def from_json(data: bytes) -> Any:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = {"pushProvider": "apns_dev", "token": as_text(data)}
        return tokens.token_from_json(value)

    yield Target("tokens.token_from_json", token_texts, from_json)


def pair(
    samples: list[bytes], decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> Target:
    module = decode.__module__.rpartition(".")[2]
    return Target(f"{module}.{decode.__name__}", samples, decode, round_trip(decode, encode))


def bytes_targets() -> Iterator[Target]:
    blocks = hexes("block_padded", "ntf_cmd", "ntf_resp")
    yield Target("primitives.unpad", blocks, primitives.unpad)
    yield pair(ERRORS, errors.decode_error, errors.encode_error)
    yield pair(TRANSPORT_ERRORS, errors.decode_transport_error, errors.encode_transport_error)
    yield pair(
        [bytes(8) + b"T hello", b"QUOTA " + bytes(8), *recorded("msg_decrypted", "plain")],
        messages.decode_rcv_message,
        messages.encode_rcv_message,
    )
    yield pair(
        [*hexes("encoded", "nmsg_meta"), *recorded("nmsg_decrypted", "plain")],
        push.decode_nmsg_meta,
        push.encode_nmsg_meta,
    )
    yield Target(
        "confirmations.decode_confirmation",
        [confirmations.encode_confirmation(count) for count in (0, 1, confirmations.MAX_COUNT)],
        confirmations.decode_confirmation,
    )
    yield pair(PUSHES, push.decode_push, push.encode_apns)
    yield Target(
        "push.decode_pn_messages",
        texts("encoded", "pn_messages"),
        push.decode_pn_messages,
        # The text of an IPv6 host with a port is ambiguous, so it does not always decode again.
        lambda listed: expect(bool(push.encode_pn_messages(listed)), "an empty list"),
    )


def handshake_targets() -> Iterator[Target]:
    samples = recorded_handshakes()
    samples.append(b"\x00\x12\x02fp\x2c" + X + b"F1N\x01\x00\x04leaf\x00\x06signed")
    yield pair(samples, handshakes.decode_ntf_server, handshakes.encode_ntf_server)
    yield pair(samples, handshakes.decode_ntf_client, handshakes.encode_ntf_client)
    yield pair(samples, handshakes.decode_smp_server, handshakes.encode_smp_server)
    yield pair(samples, handshakes.decode_smp_client, handshakes.encode_smp_client)
    yield Target(
        "explain.explain_handshake",
        samples,
        lambda data: explain.explain_handshake(data, *pick(HANDSHAKES, data)),
    )
    responses = [b"R\x18" + bytes(24), *(b"E" + error for error in TRANSPORT_ERRORS)]
    yield pair(responses, handshakes.decode_service_response, handshakes.encode_service_response)


def protocol_targets() -> Iterator[Target]:
    forwarded = [b"\x04corr\x00\x11\x2c" + X + b"box"]
    yield pair(forwarded, forwarding.decode_forwarded, forwarding.encode_forwarded)
    yield pair(
        forwarded, forwarding.decode_forwarded_response, forwarding.encode_forwarded_response
    )
    ntf_commands = hexes("command", "ntf_cmd")
    ntf_responses = [*hexes("command", "ntf_resp"), *(b"ERR " + error for error in ERRORS)]
    ntf_commands += [b"TRPL " + WEB_PUSH]
    smp_commands = [*hexes("command", "smp_cmd"), *SMP_SAMPLES]
    smp_responses = [*hexes("command", "smp_resp"), *SMP_SAMPLES]
    yield table_target("ntf.NTF_COMMANDS", ntf.NTF_COMMANDS, NTF_SESSIONS, ntf_commands)
    yield table_target("ntf.NTF_RESPONSES", ntf.NTF_RESPONSES, NTF_SESSIONS, ntf_responses)
    yield table_target("smp.SMP_COMMANDS", smp.SMP_COMMANDS, SMP_SESSIONS, smp_commands)
    yield table_target("smp.SMP_RESPONSES", smp.SMP_RESPONSES, SMP_SESSIONS, smp_responses)

    contents = hexes("block_content", "ntf_cmd", "ntf_resp", "smp_cmd", "smp_resp")
    contents += recorded("block_content", "hex")
    singles = recorded("transmission", "transmission")
    yield Target(
        "transmissions.decode_transmission",
        singles,
        decode_transmission,
        check_transmission,
        share=2,
    )
    yield Target("transmissions.unpack", contents, unpack, check_batch, share=2)
    yield Target("requests.decode_requests", contents, requests, share=2)
    yield Target("requests.decode_replies", contents, replies, share=2)
    blocks = hexes("block_padded", "ntf_cmd", "ntf_resp")
    explained = [*contents, *singles, *ntf_commands, *smp_responses, *blocks]
    yield Target("explain.explain", explained, explain.explain, share=0.3)
    yield Target("explain.explain_frame", explained, explain.explain_frame, share=0.3)


def decode_transmission(data: bytes) -> tuple[Session, RawTransmission, bytes]:
    session = pick(SESSIONS, data)
    return session, transmissions.decode_transmission(session, data), data


def check_transmission(decoded: tuple[Session, RawTransmission, bytes]) -> None:
    session, raw, data = decoded
    ids = (raw.corr_id, raw.entity_id, raw.command)
    encoded = transmissions.encode_transmission(session, *ids, raw.auth, raw.service_signature)
    expect(encoded == data, "another transmission than was decoded")


def unpack(data: bytes) -> tuple[Session, list[bytes], bytes]:
    session = pick(SESSIONS, data)
    return session, transmissions.unpack(session, data), data


def check_batch(decoded: tuple[Session, list[bytes], bytes]) -> None:
    session, items, data = decoded
    if len(data) < session.block_size - 18:
        expect(transmissions.pack(session, items) == [data], "another batch than was unpacked")


def requests(data: bytes) -> list[Request[Any] | Failure]:
    table, sessions = pick(
        ((ntf.NTF_COMMANDS, NTF_SESSIONS), (smp.SMP_COMMANDS, SMP_SESSIONS)), data
    )
    return _some_read(decode_requests(pick(sessions, data), table, data))


def replies(data: bytes) -> list[Reply[Any] | Failure]:
    table, sessions = pick(
        ((ntf.NTF_RESPONSES, NTF_SESSIONS), (smp.SMP_RESPONSES, SMP_SESSIONS)), data
    )
    return _some_read(decode_replies(pick(sessions, data), table, data))


def _some_read(results: list[T]) -> list[T]:
    """Count a block as refused if nothing in it could be read."""
    expect(bool(results), "a block without an answer")
    first = results[0]
    if isinstance(first, Failure) and all(isinstance(result, Failure) for result in results):
        raise WireError(first.error)
    return results


def crypto_targets() -> Iterator[Target]:
    signed = [data[2:] for data in hexes("signed_exact_der_large", "signed_x25519_key")]
    leaves = hexes("public_spki", "keypair")

    def verify_session_key(data: bytes) -> bytes:
        for leaf in leaves[:-1]:
            try:
                return session_keys.verify_session_key(leaf, data)
            except CryptoError:
                continue
        return session_keys.verify_session_key(leaves[-1], data)

    yield Target("crypto.verify_session_key", signed, verify_session_key)
    chains = recorded_chains()
    now = time.time()
    certificates_of = [der for chain in chains for der in chain]

    def identity_of(data: bytes) -> Any:
        chain = pick(chains, data)
        return certificates.identity_of([data, *chain[1:]], now)

    yield Target("crypto.identity_of", certificates_of, identity_of, share=0.1)
    key = p256.P256Key.generate()
    auth = bytes(16)
    body = webpush.encrypt(b"plain", key.public, auth)
    yield Target(
        "crypto.webpush.decrypt", [body], lambda data: webpush.decrypt(data, key, auth), share=0.1
    )
    token = jwt.sign_jwt(key, {"aud": "x"})
    yield Target(
        "crypto.jwt.parse_jwt", [token.encode()], lambda data: jwt.parse_jwt(data.decode("latin-1"))
    )
    pem = [certificates.certificates_to_pem(chain) for chain in chains]
    yield Target("crypto.certificates_from_pem", pem, certificates.certificates_from_pem, share=0.1)

    private = keys.generate_key_pair(wire_keys.Algorithm.X25519).private
    yield Target("crypto.dh", leaves, lambda data: keys.dh(data, private), share=0.3)
    yield Target("crypto.box_key", leaves, lambda data: keys.box_key(data, private), share=0.3)

    def verify_with(data: bytes) -> bool:
        size = 114 if keys.algorithm_of(data) is wire_keys.Algorithm.ED448 else 64
        return keys.verify(data, bytes(size), b"message")

    yield Target("crypto.verify", leaves, verify_with, share=0.3)
    auths = [bytes(64), bytes(80), bytes(114)]

    def verify(data: bytes) -> bool:
        public = pick([*leaves, None], data)
        return authorization.verify_authorization(public, private, data[:24], data, data)

    yield Target("crypto.verify_authorization", auths, verify, share=0.3)
    boxed = boxes.box_padded(bytes(32), bytes(24), b"message", 128)
    yield Target(
        "crypto.open_box_padded",
        [boxed],
        lambda data: boxes.open_box_padded(bytes(32), bytes(24), data),
    )


def all_targets() -> list[Target]:
    return [
        *codec_targets(),
        *text_targets(),
        *bytes_targets(),
        *handshake_targets(),
        *protocol_targets(),
        *crypto_targets(),
    ]


# Mutation

_WORDS = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b" ", b"0", b"1", b"T", b"F", b",", b";", b":", b"/"),
    *(b"\x20", b"\x2c", b"\x40", b"\xff\xff", b"\x00\x00", b"-", b"=", b"{}", b"null", b'""'),
    *(b"1" * 5000, b"[" * 3000, b'{"a":' * 1500, b"PROXY PROTOCOL " * 20, b"\xed\xa0\x80"),
    *("\u0661".encode(), b"\\ud800", b"1e9", b"true", b"1.5", b"%", b"\n", b"\xc3\xa9"),
)


def mutate(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    if not samples or rng.random() < 0.1:
        return rng.randbytes(rng.randrange(80))
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2 if at < len(data):
                data[at] = (data[at] + rng.choice((-1, 1))) % 256
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
            case 4:
                del data[at : at + rng.randrange(1, 9)]
            case 5:
                del data[at:]
            case 6:
                other = rng.choice(samples)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                word = rng.choice(_WORDS)
                data[at : at + rng.choice((0, len(word)))] = word
    return bytes(data)


def quotas_of(targets: list[Target], count: int, each: int | None) -> list[tuple[Target, int]]:
    total = sum(target.share for target in targets)
    return [(target, each or ceil(count * target.share / total)) for target in targets]


def fuzz(quotas: list[tuple[Target, int]], seconds: float, seed: int) -> None:
    """Give each parser as many inputs as its quota, in turns."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    while quotas and time.monotonic() < deadline:
        for target, quota in quotas:
            for _ in range(int(min(CHUNK * target.share, quota - target.inputs)) or 1):
                data = mutate(rng, target.samples)
                try:
                    target.run(data)
                except Exception:
                    target.failure = f"{data.hex()}\n{traceback.format_exc()}"
                    break
        quotas = [
            (target, quota)
            for target, quota in quotas
            if target.inputs < quota and not target.failure
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--each", type=int, default=None, help="inputs for each parser instead")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this")
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run")
    parser.add_argument("--only", default="", help="parsers whose name has this in it")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    targets = [target for target in all_targets() if options.only in target.name]
    started = time.monotonic()
    with warnings.catch_warnings():
        # About a certificate's serial number, which today is a warning and later a refusal.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        fuzz(quotas_of(targets, options.count, options.each), options.seconds, seed)
    print(f"{'parser':40} {'inputs':>9} {'accepted':>9}")
    for target in targets:
        print(f"{target.name:40} {target.inputs:9,} {target.accepted:9,}")
    tried = sum(target.inputs for target in targets)
    print(f"{tried:,} inputs in {time.monotonic() - started:.0f} s, seed {seed}")
    failed = [target for target in targets if target.failure]
    for target in failed:
        print(f"\n{target.name} failed on {target.failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
