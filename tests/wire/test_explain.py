"""Explanations name every field of every vector, and never show a private key."""

import json
from pathlib import Path
from typing import Any

import pytest

from heliograph.wire import handshakes, ntf, smp
from heliograph.wire.errors import WireError
from heliograph.wire.explain import describe, explain, explain_frame, explain_handshake
from heliograph.wire.keys import PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from heliograph.wire.primitives import pad
from heliograph.wire.transmissions import Session, encode_transmission, pack
from heliograph.wire.versions import VersionRange

GOLDEN = Path(__file__).parents[1] / "vectors" / "golden.jsonl"
COMMANDS = [
    vector
    for vector in map(json.loads, GOLDEN.read_text().splitlines())
    if vector["kind"] in ("ntf_cmd", "ntf_resp", "smp_cmd", "smp_resp")
    and "block_content" in vector
]


@pytest.mark.parametrize("vector", COMMANDS, ids=lambda v: f"{v['kind']}-{v['name']}-v{v['v']}")
@pytest.mark.parametrize("guess", [True, False], ids=["guessed", "given"])
def test_vectors_are_explained_without_gaps(vector: dict[str, Any], guess: bool) -> None:
    content = bytes.fromhex(vector["block_content"])
    protocol = vector["kind"][:3]
    explanation = explain(content, None if guess else protocol, None if guess else vector["v"])
    tag = bytes.fromhex(vector["command"]).partition(b" ")[0].decode()
    assert tag in [line.meaning for line in explanation.lines if line.name == "tag"]
    end = 0
    for line in explanation.lines:
        assert line.start is not None
        assert line.end is not None
        assert line.start - end in (0, 1)  # a space follows the tag
        end = line.end
    assert end == len(content)


def test_whole_block() -> None:
    session = Session.smp(bytes(32), 18)
    send = b"SEND T body"
    transmission = encode_transmission(session, bytes(24), b"q" * 24, send, bytes(64), bytes(64))
    [content] = pack(session, [transmission])
    explanation = explain(pad(content, session.block_size))
    assert explanation.title == "SMP block, version 19"
    named = {line.name: line.meaning for line in explanation.lines}
    assert named["authorization"] == "Ed25519 signature"
    assert named["service signature"].endswith("(64 bytes)")
    assert named["flags"] == "MsgFlags(notification=True)"
    assert named["body"] == "'body'"


def test_version_with_a_sent_session_id() -> None:
    session = Session.ntf(b"s" * 32, 1)
    data = encode_transmission(session, b"1", b"", b"PING")
    assert explain(data, "ntf").title == "NTF content, version 1"
    assert explain(pad(data, 512)).title == "NTF block, version 1"
    with pytest.raises(WireError):
        explain(encode_transmission(Session.ntf(b"short", 1), b"1", b"", b"PING"), "ntf", 1)


def test_bare_command() -> None:
    explanation = explain(b"TCRN \x00\x1e")
    assert explanation.title == "NTF command, version 3"
    assert [(line.name, line.meaning) for line in explanation.lines] == [
        ("tag", "TCRN"),
        ("minutes", "30"),
    ]


def test_push_has_no_correlation_id() -> None:
    data = encode_transmission(Session.smp(b"", 18), b"", b"n" * 24, b"END")
    assert "none: a push" in [line.meaning for line in explain(data, "smp").lines]


@pytest.mark.parametrize("data", [b"", b"hello", bytes(512), bytes(16384)])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        explain(data)


@pytest.mark.parametrize(
    ("data", "protocol", "nearest"),
    [
        (bytes.fromhex("deadbeef"), None, "NTF transmission: authorization: 222 bytes wanted"),
        (b"", "smp", "SMP transmission: authorization: 1 bytes wanted, 0 left"),
        (b"\0\1c\0HELLO", None, "NTF transmission: no command or response has this tag"),
        (b"TCRNN x", None, "NTF TCRN, which has a similar tag"),
        (b"SUBS2 x", None, "SMP SUBS, which has a similar tag"),
    ],
)
def test_nothing_known(data: bytes, protocol: str | None, nearest: str) -> None:
    versions = "SMP 6 to 19" if protocol else "NTF 1 to 3 and SMP 6 to 19"
    with pytest.raises(WireError) as raised:
        explain(data, protocol)
    assert str(raised.value).startswith(
        f"nothing known: tried as block, content, transmission and command of {versions}. "
        f"The nearest reading: {nearest}"
    )


def test_nothing_known_in_one_version() -> None:
    with pytest.raises(WireError, match=r"command of NTF 2\. The nearest"):
        explain(b"rubbish", "ntf", 2)


def test_unknown_authorization_is_refused() -> None:
    with pytest.raises(WireError):
        explain(b"\x03abc\x00\x00PING", "ntf", 3)


def test_handshakes() -> None:
    hello = handshakes.encode_ntf_server(
        handshakes.NtfServerHandshake(VersionRange(1, 3), bytes(32), b"key")
    )
    for data in (hello, pad(hello, 512)):
        explanation = explain_handshake(data, "ntf", "server")
        assert explanation.title == "NTF server handshake"
        assert [line.name for line in explanation.lines] == ["versions", "session_id", "signed_key"]
        assert explanation.lines[0].start is None
    client = handshakes.encode_smp_client(handshakes.SmpClientHandshake(18, bytes(32)))
    assert explain_handshake(client, "smp", "client").lines[2].meaning == "none"
    service = explain_handshake(b"R\x03abc", "smp", "service")
    assert service.lines[0].meaning == "'abc'"
    with pytest.raises(WireError, match="no service handshake"):
        explain_handshake(b"R\x03abc", "ntf", "service")


def test_private_keys_are_never_shown() -> None:
    secret = b"S" * 32
    private = PKCS8_PREFIX[Algorithm.X25519] + secret
    assert describe(private) == "X25519 private key, not shown"
    assert describe(SPKI_PREFIX[Algorithm.X25519] + secret) == f"X25519 key {secret.hex()}"


def test_values_are_described_for_people() -> None:
    assert describe((1, None, True)) == "1, none, True"
    assert describe(bytes(40)) == f"{bytes(32).hex()}... (40 bytes)"
    assert describe(b"") == " (0 bytes)"
    assert describe(ntf.TCRN(5)) == "TCRN(minutes=5)"
    assert describe(smp.NSUB()) == "NSUB()"
    assert describe(Algorithm.ED448) == "ED448"


def test_what_a_peer_sent_is_escaped() -> None:
    assert describe("a\n\x1b[31m\udcff") == "a\\n\\x1b[31m\\udcff"


def test_the_error_is_about_the_outermost_sound_frame() -> None:
    session = Session.ntf(bytes(32), 3)
    [content] = pack(
        session, [encode_transmission(session, bytes(24), b"", b"TNEW Txx", bytes(64))]
    )
    with pytest.raises(WireError, match="as NTF block: unknown push provider"):
        explain(pad(content, 512))
    with pytest.raises(WireError, match="as NTF content: unknown push provider"):
        explain(content)
    with pytest.raises(WireError, match=r"as SMP command: .* wanted"):
        explain(b"NEW x")
    with pytest.raises(WireError, match="nothing to explain"):
        explain(b"PING", "ntf", 9)


def test_responses_are_called_so() -> None:
    assert explain(b"ERR AUTH").title == "NTF response, version 3"


MALFORMED = [b"HELLO", b"", b"TVFY", b"TCHK x", b"TRPL XX\2zz"]


@pytest.mark.parametrize("command", MALFORMED)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_is_sound_around_a_malformed_command(command: bytes, version: int) -> None:
    session = Session.ntf(bytes(32), version)
    transmission = encode_transmission(session, b"c" * 24, b"e" * 24, command, bytes(64))
    (content,) = pack(session, [transmission])
    for data, said in ((pad(content, 512), None), (content, None), (transmission, "ntf")):
        with pytest.raises(WireError):
            explain(data)
        explanation = explain_frame(data, said, version)
        assert explanation is not None
        assert explanation.title.startswith("malformed NTF")
        fields = [line for line in explanation.lines if line.name != "padding"]
        assert fields[-1].name == "command"
        assert "malformed: " in fields[-1].meaning
        spans = [(line.start, line.end) for line in explanation.lines]
        assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
        assert spans[-1][1] == len(data)


def test_the_neighbours_of_a_malformed_command() -> None:
    session = Session.smp(bytes(32), 19)
    commands = (b"PING", b"PONK", b"SUB x")
    transmissions = [encode_transmission(session, b"c", b"", command) for command in commands]
    (content,) = pack(session, transmissions)
    explanation = explain_frame(content, "smp")
    assert explanation is not None
    assert [line.meaning for line in explanation.lines if line.name in ("tag", "command")] == [
        "PING",
        "'PONK', malformed: no command or response has this tag",
        "'SUB', malformed: 2 surplus bytes",
    ]


def test_no_private_key_of_a_malformed_command_is_shown() -> None:
    session = Session.ntf(bytes(32), 3)
    key = PKCS8_PREFIX[Algorithm.ED25519] + b"k" * 32
    (content,) = pack(session, [encode_transmission(session, b"c", b"", b"SNEW S" + key)])
    explanation = explain_frame(content)
    assert explanation is not None
    assert "kk" not in str(explanation)
    assert (b"k" * 4).hex() not in str(explanation)


@pytest.mark.parametrize("data", [b"", b"\0", b"HELLO", bytes(512), bytes(16384)])
def test_no_frame(data: bytes) -> None:
    assert explain_frame(data) is None


def test_transmission_of_no_protocol_in_particular() -> None:
    transmission = encode_transmission(Session.ntf(bytes(32), 3), b"c", b"", b"HELLO")
    assert explain_frame(transmission) is None
    assert explain_frame(transmission, "ntf", 9) is None
    assert explain_frame(transmission, "ntf", 3) is not None
