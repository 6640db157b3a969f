"""Golden vectors: each line decodes to a value and encodes to the same bytes."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.crypto import authorization, boxes, chains, forwarding, keys, session_keys
from heliograph.crypto.errors import CryptoError
from heliograph.wire import addresses, errors, ntf, smp, transmissions
from heliograph.wire.errors import WireError
from heliograph.wire.keys import (
    Algorithm,
    auth_private_key,
    auth_public_key,
    public_key_algorithm,
)
from heliograph.wire.ntf import push, tokens
from heliograph.wire.primitives import (
    Codec,
    Reader,
    b64decode,
    b64encode,
    boolean,
    i64,
    large,
    list_of,
    maybe,
    pad,
    short,
    tail,
    time,
    u8,
    u16,
    u32,
    unpad,
)
from heliograph.wire.smp.forwarding import ForwardedResponse, ForwardedTransmission
from heliograph.wire.smp.links import sender_id_of
from heliograph.wire.table import Table, check_credentials
from heliograph.wire.transmissions import Session
from heliograph.wire.versions import VersionRange, version_range
from tests.vectors.files import Line, golden_vectors, read_lines, vector_files
from tests.vectors.haskell import parse_string, parse_text

README_KINDS = {
    *("encode", "pad", "unpad", "keypair", "private_auth_key_smp", "signed_x25519_key", "sign"),
    *("dh_x25519", "cb_encrypt_nopad", "cb_encrypt_padded", "sb_encrypt_nopad"),
    *("cb_authenticator", "cbNonce_from_bytes", "sbc_init", "sbc_hkdf", "hkdf_sha512"),
    *("server_uri", "smp_server_binary", "device_token", "device_token_str", "tkn_status"),
    *("sub_status", "error", "ntf_cmd", "ntf_resp", "ntf_batch", "smp_cmd", "smp_resp"),
    *("nmsg_meta", "pn_messages", "pn_verification"),
    *("sender_id", "reverse_nonce", "proxied"),
}

Check = Callable[[Line], None]
CHECKS: dict[str, Check] = {}


def check(kind: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[kind] = function
        return function

    return register


@pytest.mark.parametrize("vector", [pytest.param(line, id=name) for name, line in golden_vectors()])
def test_golden(vector: Line) -> None:
    run = CHECKS[vector["kind"]]
    if "error" in vector:
        with pytest.raises((WireError, CryptoError)):
            run(vector)
    else:
        run(vector)


def test_every_kind_of_the_readme_is_checked_and_present() -> None:
    assert set(CHECKS) == README_KINDS
    assert {line["kind"] for _, line in golden_vectors()} >= README_KINDS


def hexes(vector: Line, *names: str) -> list[bytes]:
    return [bytes.fromhex(vector[name]) for name in names]


def decode(codec: Codec[Any], data: bytes) -> Any:
    reader = Reader(data)
    value = codec.decode(reader)
    reader.end()
    assert codec.encode(value) == data
    return value


# Primitives


def _counted(text: str) -> bytes:
    """`abc`, or `300*y` for a long one."""
    repeated = re.fullmatch(r"([0-9]+)\*(.)", text)
    return repeated[2].encode() * int(repeated[1]) if repeated else text.encode()


def _listed(text: str) -> tuple[bytes, ...]:
    return tuple(_counted(item) for item in text[1:-1].split(","))


def _optional(text: str) -> bytes | None:
    return None if text == "Nothing" else _counted(text.removeprefix("Just").strip())


def _range(text: str) -> VersionRange:
    return VersionRange(*map(int, text.split("-")))


ENCODINGS: dict[str, tuple[Codec[Any], Callable[[str], Any]]] = {
    "Word8": (u8, int),
    "Word16": (u16, int),
    "Word32": (u32, int),
    "Int64": (i64, int),
    "SystemTime": (time, lambda text: int(text.split("s")[0])),
    "Bool": (boolean, lambda text: {"True": True, "False": False}[text]),
    "Char": (u8, ord),
    "ByteString": (short, _counted),
    "String": (short, _counted),
    "Text": (short, _counted),
    "Large": (large, _counted),
    "Tail": (tail, _counted),
    "Maybe ByteString": (maybe(short), _optional),
    "NonEmpty ByteString": (list_of(short), _listed),
    "VersionRange": (version_range, _range),
    "KeyHash": (short, lambda text: None),  # the fixture's, not written in the vector
}


@check("encode")
def check_encode(vector: Line) -> None:
    codec, parse = ENCODINGS[vector["type"]]
    expected = parse(vector["value"])
    (data,) = hexes(vector, "hex")
    value = decode(codec, data)
    if vector["type"] == "KeyHash":
        assert len(value) == 32
    else:
        assert value == expected
        assert codec.encode(expected) == data


@check("pad")
def check_pad(vector: Line) -> None:
    (message,) = hexes(vector, "msg")
    padded = pad(message, vector["size"])
    assert padded.hex() == vector["padded"]
    assert unpad(bytes.fromhex(vector["padded"])) == message


@check("unpad")
def check_unpad(vector: Line) -> None:
    (padded,) = hexes(vector, "padded")
    assert unpad(padded).hex() == vector["msg"]


# Keys


@check("keypair")
def check_keypair(vector: Line) -> None:
    private, spki = hexes(vector, "private_pkcs8", "public_spki")
    if "name" in vector:  # a key that other vectors use
        assert keys.public_key(private) == spki
        return
    raw, encoded = hexes(vector, "public_raw", "public_smp")
    assert decode(short, encoded) == spki
    assert spki.endswith(raw)
    assert (b64decode(vector["public_str"]), b64encode(spki)) == (spki, vector["public_str"])
    assert b64decode(vector["private_pkcs8_b64url"]) == private
    if vector["alg"] not in {algorithm.value for algorithm in Algorithm}:
        with pytest.raises(WireError):  # the protocols have no use for it
            auth_public_key.decode(Reader(encoded))
        return
    algorithm = Algorithm(vector["alg"])
    assert keys.algorithm_of(spki) is keys.private_algorithm_of(private) is algorithm
    assert keys.public_key(private) == spki
    assert decode(auth_public_key, encoded) == spki


@check("private_auth_key_smp")
def check_private_key(vector: Line) -> None:
    (encoded,) = hexes(vector, "smp")
    private = decode(auth_private_key, encoded)
    assert keys.private_algorithm_of(private) is Algorithm(vector["alg"])
    assert (b64decode(vector["str"]), b64encode(private)) == (private, vector["str"])


@check("signed_x25519_key")
def check_signed_key(vector: Line) -> None:
    (private,) = hexes(vector, next(name for name in vector if name.startswith("server_")))
    spki, encoded = hexes(vector, "x25519_spki", "signed_exact_der_large")
    signed = decode(large, encoded)
    assert session_keys.sign_session_key(private, spki) == signed
    assert session_keys.verify_session_key(keys.public_key(private), signed) == spki


@check("sign")
def check_sign(vector: Line) -> None:
    private, message, signature = hexes(vector, "private_pkcs8", "msg", "sig")
    assert keys.private_algorithm_of(private) is Algorithm(vector["alg"])
    assert keys.sign(private, message) == signature
    assert keys.verify(keys.public_key(private), signature, message)
    assert not keys.verify(keys.public_key(private), signature, message + b"x")


@check("dh_x25519")
def check_dh(vector: Line) -> None:
    public, private, secret = hexes(vector, "public_spki", "private_pkcs8", "secret")
    assert keys.dh(public, private) == secret
    assert keys.box_key(public, private) == boxes.hsalsa20(secret)


# Boxes and authenticators


@check("cb_encrypt_nopad")
def check_box(vector: Line) -> None:
    secret, nonce, message, box = hexes(vector, "secret", "nonce", "msg", "box")
    assert boxes.box(secret, nonce, message) == box
    assert boxes.open_box(secret, nonce, box) == message


@check("cb_encrypt_padded")
def check_padded_box(vector: Line) -> None:
    secret, nonce, message, box = hexes(vector, "secret", "nonce", "msg", "box")
    assert boxes.box_padded(secret, nonce, message, vector["paddedLen"]) == box
    assert boxes.open_box_padded(secret, nonce, box) == message


@check("sb_encrypt_nopad")
def check_secret_box(vector: Line) -> None:
    key, nonce, message, box = hexes(vector, "key", "nonce", "msg", "box")
    assert boxes.box(key, nonce, message) == box
    assert boxes.open_box(key, nonce, box) == message


@check("cb_authenticator")
def check_authenticator(vector: Line) -> None:
    client, client_public, server, server_public = hexes(
        vector,
        *("client_private_pkcs8", "client_public_spki"),
        *("server_private_pkcs8", "server_public_spki"),
    )
    nonce, message, expected = hexes(vector, "nonce_corrId", "msg", "authenticator")
    assert (keys.public_key(client), keys.public_key(server)) == (client_public, server_public)
    assert hashlib.sha512(message).hexdigest() == vector["sha512"]
    assert authorization.authenticator(server_public, client, nonce, message) == expected
    verified = authorization.verify_authenticator(client_public, server, nonce, message, expected)
    assert verified is vector["verifies"]


@check("cbNonce_from_bytes")
def check_nonce(vector: Line) -> None:
    assert boxes.nonce_from(bytes.fromhex(vector["bytes"])).hex() == vector["nonce"]


@check("sbc_init")
def check_chain_init(vector: Line) -> None:
    session_id, secret = hexes(vector, "salt_sessionId", "secret")
    assert chains.chain_init(session_id, secret) == (
        parse_string(vector["client_rcv_server_snd_ck1"]),
        parse_string(vector["client_snd_server_rcv_ck2"]),
    )


@check("sbc_hkdf")
def check_chain_step(vector: Line) -> None:
    step = chains.chain_step(parse_string(vector["chainKey"]))
    assert step.next == parse_string(vector["nextChainKey"])
    assert (step.key.hex(), step.nonce.hex()) == (vector["sbKey"], vector["nonce"])


@check("hkdf_sha512")
def check_hkdf(vector: Line) -> None:
    salt, ikm = hexes(vector, "salt", "ikm")
    assert chains.hkdf(salt, ikm, vector["info"].encode(), vector["len"]).hex() == vector["okm"]


# Text and addresses

_HOST_KINDS = {
    "THIPv4": addresses.HostKind.IPV4,
    "THIPv6": addresses.HostKind.IPV6,
    "THOnionHost": addresses.HostKind.ONION,
    "THDomainName": addresses.HostKind.DOMAIN,
}


@check("server_uri")
def check_address(vector: Line) -> None:
    address = addresses.decode_address(vector["uri"])
    assert address.scheme.value == vector["scheme"]
    assert [host.text for host in address.hosts] == vector["hosts"]
    shown = re.findall(r"\bTH[A-Za-z0-9]+", vector["hosts_show"])
    assert [host.kind for host in address.hosts] == [_HOST_KINDS[name] for name in shown]
    assert address.port == vector["port"]
    assert address.fingerprint.hex() == vector["keyHash"]
    assert address.password == vector["auth"]
    assert addresses.encode_address(address) == vector["reencoded"]
    if address.hosts[-1].kind is not addresses.HostKind.IPV6 or not address.port:
        assert addresses.decode_address(vector["reencoded"]) == address
    assert addresses.decode_address(str(address)) == address


@check("smp_server_binary")
def check_binary_address(vector: Line) -> None:
    address = addresses.decode_address(vector["uri"])
    assert decode(addresses.smp_server, bytes.fromhex(vector["hex"])) == address


@check("device_token")
def check_token(vector: Line) -> None:
    token = decode(tokens.device_token, bytes.fromhex(vector["smp"]))
    assert tokens.encode_token_text(token) == vector["str"]
    assert tokens.decode_token_text(vector["str"]) == token
    assert tokens.token_to_json(token) == vector["json"]
    assert tokens.token_from_json(vector["json"]) == token


@check("device_token_str")
def check_token_text(vector: Line) -> None:
    token = tokens.decode_token_text(vector["str"])
    assert tokens.encode_token_text(token) == vector["str"]


_REASONS = {
    "NTIRBadToken": tokens.InvalidReason.BAD,
    "NTIRTokenNotForTopic": tokens.InvalidReason.TOPIC,
    "NTIRExpiredToken": tokens.InvalidReason.EXPIRED,
    "NTIRUnregistered": tokens.InvalidReason.UNREGISTERED,
}


@check("tkn_status")
def check_token_status(vector: Line) -> None:
    (data,) = hexes(vector, "hex")
    assert data.decode() == vector["text"]
    status = decode(tokens.token_status, data)
    name, _, reason = vector["value"].removeprefix("NT").partition(" ")
    if name == "Invalid":
        found = next((value for text, value in _REASONS.items() if text in reason), None)
        assert status is tokens.TokenStatus.invalid(found)
    else:
        assert status is tokens.TokenStatus[name.upper()]


@check("sub_status")
def check_subscription_status(vector: Line) -> None:
    (data,) = hexes(vector, "hex")
    assert data.decode() == vector["text"]
    status = decode(tokens.subscription_status, data)
    name, _, text = vector["value"].removeprefix("NS").partition(" ")
    assert status.state is tokens.SubscriptionState[name.upper()]
    assert status.error == (parse_string(text) if text else b"")


@check("error")
def check_error(vector: Line) -> None:
    data = vector["text"].encode()
    error = errors.decode_error(data)
    assert errors.encode_error(error) == data
    first, command_error = vector["value"].split(" ")[0], r"CMD {cmdErr = (\w+)}"
    if match := re.fullmatch(command_error, vector["value"]):
        assert error is errors.ErrorCode(f"CMD {match[1]}")
    elif isinstance(error, errors.STORE):
        assert error.text == parse_text(vector["value"])
    elif isinstance(error, errors.ErrorCode):
        assert error.value == first
    else:
        assert type(error).__name__ == first


# Protocol


def _fixture_keys(name: str) -> list[Line]:
    lines = [line for path in vector_files() for line in read_lines(path)]
    return [line for line in lines if line.get("kind") == "keypair" and line["alg"] == name]


def _possible_authorizations(key: str, corr_id: bytes, authorized: bytes) -> set[bytes]:
    privates = [bytes.fromhex(line["private_pkcs8"]) for line in _fixture_keys(key)]
    servers = [bytes.fromhex(line["public_spki"]) for line in _fixture_keys("X25519")]
    return {
        authorization.authorize(private, server, corr_id, authorized)
        for private in privates
        for server in servers
    }


def _check_command(vector: Line, table: Table[Any], session: Session) -> None:
    command, corr_id, entity_id = hexes(vector, "command", "corrId", "entityId")
    value = table.decode(command, session.version)
    assert table.encode(value, session.version) == command
    authorized = transmissions.authorized_bytes(session, corr_id, entity_id, command)
    assert authorized.hex() == vector["tForAuth"]
    sent = transmissions.encode_unauthorized(corr_id, entity_id, command)
    assert (sent if session.implied_session else authorized).hex() == vector["tToSend"]

    (content,) = hexes(vector, "block_content")
    (transmission,) = transmissions.unpack(session, content)
    assert transmission.hex() == vector.get("transmission", transmission.hex())
    assert transmissions.pack(session, [transmission]) == [content]
    raw = transmissions.decode_transmission(session, transmission)
    assert (raw.corr_id, raw.entity_id, raw.command) == (corr_id, entity_id, command)
    assert raw.authorized == authorized
    encoded = transmissions.encode_transmission(
        session, corr_id, entity_id, command, raw.auth, raw.service_signature
    )
    assert encoded == transmission
    check_credentials(table.credentials(value), raw.auth, entity_id)
    if vector.get("key") is None:
        assert raw.auth == b""
    else:
        assert raw.auth in _possible_authorizations(vector["key"], corr_id, authorized)
    _check_block(vector, session, content)


def _check_block(vector: Line, session: Session, content: bytes) -> None:
    if "block_padded" in vector:
        assert pad(content, session.block_size).hex() == vector["block_padded"]
        assert unpad(bytes.fromhex(vector["block_padded"])) == content


@check("ntf_cmd")
def check_ntf_command(vector: Line) -> None:
    session = Session.ntf(bytes.fromhex(vector["sessionId"]), vector["v"])
    _check_command(vector, ntf.NTF_COMMANDS, session)


@check("smp_cmd")
def check_smp_command(vector: Line) -> None:
    session = Session.smp(bytes.fromhex(vector["sessionId"]), vector["v"])
    _check_command(vector, smp.SMP_COMMANDS, session)


@check("sender_id")
def check_sender_id(vector: Line) -> None:
    corr_id, sender_id = hexes(vector, "corrId", "senderId")
    assert sender_id_of(corr_id) == sender_id


@check("reverse_nonce")
def check_reverse_nonce(vector: Line) -> None:
    """By the box of an answer, which has the nonce of its command in reverse."""
    nonce, reverse = hexes(vector, "nonce", "reversed")
    key = bytes(32)
    boxed = forwarding.seal_answer(key, nonce, b"content")
    assert forwarding.open_command(key, reverse, boxed) == b"content"


@check("proxied")
def check_proxied(vector: Line) -> None:
    """A command through all its boxes, and the answer back through them."""
    dest, cmd, proxy = hexes(
        vector, "destPrivate_pkcs8", "cmdPrivate_pkcs8", "proxySessionPrivate_pkcs8"
    )
    dest_public, cmd_public, proxy_public = hexes(
        vector, "destPublic_spki", "cmdPublic_spki", "proxySessionPublic_spki"
    )
    corr_id, proxy_corr_id, inner = hexes(vector, "corrId", "proxyCorrId", "inner_block")
    sealed, pfwd, outer = hexes(vector, "encTransmission", "pfwd", "encFwdTransmission")
    cmd_key = keys.box_key(cmd_public, dest)
    proxy_key = keys.box_key(proxy_public, dest)
    assert cmd_key == keys.box_key(dest_public, cmd)
    assert proxy_key == keys.box_key(dest_public, proxy)
    assert forwarding.seal_command(cmd_key, corr_id, inner) == sealed
    assert forwarding.open_command(cmd_key, corr_id, sealed) == inner
    command = smp.PFWD(vector["v"], cmd_public, sealed)
    assert smp.SMP_COMMANDS.encode(command, 18) == pfwd
    forwarded = ForwardedTransmission(corr_id, vector["v"], cmd_public, sealed)
    assert forwarding.seal_forwarded(proxy_key, proxy_corr_id, forwarded) == outer
    assert forwarding.open_forwarded(proxy_key, proxy_corr_id, outer) == forwarded
    answer, response, outer_response = hexes(
        vector, "response_block", "encResponse", "encFwdResponse"
    )
    assert forwarding.seal_answer(cmd_key, corr_id, answer) == response
    assert forwarding.open_answer(cmd_key, corr_id, response) == answer
    back = ForwardedResponse(corr_id, response)
    assert forwarding.seal_response(proxy_key, proxy_corr_id, back) == outer_response
    assert forwarding.open_response(proxy_key, proxy_corr_id, outer_response) == back


# What the vectors' names say and an older version does not.
_NAMED_RESPONSES = {
    "DELD": smp.DELD(),
    "SOK Nothing": smp.SOK(),
    "TKN INVALID": ntf.TKN(tokens.TokenStatus.INVALID),
    "TKN INVALID BAD": ntf.TKN(tokens.TokenStatus.INVALID_BAD),
    "PONG": smp.PONG(),
}


def _check_response(
    vector: Line, table: Table[Any], session: Callable[[bytes, int], Session]
) -> None:
    (command,) = hexes(vector, "command")
    value = table.decode(command, vector["v"])
    assert table.encode(value, vector["v"]) == command
    if vector["name"] in _NAMED_RESPONSES:
        assert table.encode(_NAMED_RESPONSES[vector["name"]], vector["v"]) == command
    if "block_content" not in vector:
        return
    (content, entity_id) = hexes(vector, "block_content", "entityId")
    corr_id = bytes.fromhex(vector.get("corrId", ""))
    layout = session(b"", vector["v"])
    (transmission,) = transmissions.unpack(layout, content)
    if not layout.implied_session:  # a response has no session ID of its own: it is the block's
        layout = session(transmission[2 : 2 + transmission[1]], vector["v"])
    raw = transmissions.decode_transmission(layout, transmission)
    assert raw.auth == b""
    assert (raw.corr_id, raw.entity_id, raw.command) == (corr_id, entity_id, command)
    encoded = transmissions.encode_transmission(layout, corr_id, entity_id, command)
    assert transmissions.pack(layout, [encoded]) == [content]
    check_credentials(table.credentials(value), b"", entity_id)
    _check_block(vector, layout, content)


@check("ntf_resp")
def check_ntf_response(vector: Line) -> None:
    _check_response(vector, ntf.NTF_RESPONSES, Session.ntf)


@check("smp_resp")
def check_smp_response(vector: Line) -> None:
    _check_response(vector, smp.SMP_RESPONSES, Session.smp)


@check("ntf_batch")
def check_batch(vector: Line) -> None:
    session = Session.ntf(bytes(32), 3)
    contents = [bytes.fromhex(batch["content"]) for batch in vector["batches"]]
    batches = [transmissions.unpack(session, content) for content in contents]
    assert [len(batch) for batch in batches] == [batch["count"] for batch in vector["batches"]]
    items = [item for batch in batches for item in batch]
    assert len(items) == vector["n"]
    assert items[0].hex() == vector["item"] or len(items[0]) == len(vector["item"]) // 2
    assert transmissions.pack(session, items) == contents
    for item in items:
        raw = transmissions.decode_transmission(session, item)
        ntf.NTF_RESPONSES.decode(raw.command, session.version)


# Notifications


@check("nmsg_meta")
def check_nmsg_meta(vector: Line) -> None:
    msg_id, encoded, encrypted, nonce, secret = hexes(
        vector, "msgId", "encoded", "encrypted", "nonce", "secret"
    )
    meta = push.NMsgMeta(msg_id, vector["msgTs"])
    assert push.decode_nmsg_meta(encoded) == meta
    assert push.encode_nmsg_meta(meta) == encoded
    assert vector["paddedLen"] == push.NMSG_META_SIZE
    assert boxes.box_padded(secret, nonce, encoded, push.NMSG_META_SIZE) == encrypted
    assert boxes.open_box_padded(secret, nonce, encrypted) == encoded


def _check_push(vector: Line, plain: bytes, kind: type[Any]) -> None:
    encrypted, nonce, secret = hexes(vector, "encrypted", "nonce", "secret")
    assert vector["paddedLen"] == push.PUSH_SIZE
    assert boxes.box_padded(secret, nonce, plain, push.PUSH_SIZE) == encrypted
    assert boxes.open_box_padded(secret, nonce, encrypted) == plain
    body = push.encode_apns(kind(nonce, encrypted))
    assert push.decode_push(body) == kind(nonce, encrypted)
    fields = json.loads(body)["notificationData"]
    assert fields["nonce"] == vector.get("nonce_json", fields["nonce"])
    boxed = fields.get("message") or fields["verification"]
    assert boxed == vector.get("encrypted_json_b64url", boxed)


@check("pn_messages")
def check_pn_messages(vector: Line) -> None:
    plain = vector["encoded"].encode()
    messages = push.decode_pn_messages(plain)
    assert push.encode_pn_messages(messages) == plain
    _check_push(vector, plain, push.MessagePush)


@check("pn_verification")
def check_pn_verification(vector: Line) -> None:
    _check_push(vector, bytes.fromhex(vector["code"]), push.VerificationPush)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('""', b""),
        (r'Key {k = "\168\245A9"}', b"\xa8\xf5A9"),
        (r'"\134\&2\SYNI"', b"\x862\x16I"),
        (r'"\SOH\SO\&H\DC4\DEL\SP"', b"\x01\x0eH\x14\x7f "),
        (r'"\a\b\f\n\r\t\v\"\\"', b'\a\b\f\n\r\t\v"\\'),
    ],
)
def test_haskell_strings(text: str, expected: bytes) -> None:
    assert parse_string(text) == expected


def test_haskell_text() -> None:
    assert parse_text(r'STORE {storeErr = "\1087 \228"}') == "\u043f ä"


def test_haskell_strings_that_are_none() -> None:
    with pytest.raises(ValueError, match="not a Haskell string"):
        parse_string(r'"\?"')


def test_key_algorithms_are_recognized_by_prefix() -> None:
    known = {line["alg"] for name in ("Ed25519", "Ed448", "X25519") for line in _fixture_keys(name)}
    assert known == {algorithm.value for algorithm in Algorithm}
    assert public_key_algorithm(b"") is None
