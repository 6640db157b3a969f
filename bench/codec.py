"""What a router spends on a command besides its store: parse, verify, encode the answer."""

import time
from collections.abc import Callable
from typing import Any

from heliograph.crypto.authorization import authorize, verify_authorization
from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from heliograph.wire.requests import Request, decode_requests, encode_reply
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.transmissions import authorized_bytes, encode_transmission, pack

ROUNDS = 3000
_ID = bytes(24)
_SERVER = decode_address("smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com")


async def run() -> None:
    print("\nCommands in memory: us to parse, to verify, to encode the answer")
    session_keys = generate_key_pair(Algorithm.X25519)
    for algorithm in Algorithm:
        keys = generate_key_pair(algorithm)
        token = APNSDeviceToken(PushProvider.APNS_PROD, b"00ff" * 16)
        dh_key = session_keys.public
        queue = SMPQueueNtf(_SERVER, _ID)
        cases: list[tuple[AnyProtocol, int, Any, bytes, Any]] = [
            (NTF, 3, ntf.TNEW(token, keys.public, dh_key), b"", ntf.IDTKN(_ID, dh_key)),
            (NTF, 3, ntf.TCHK(), _ID, ntf.OK()),
            (NTF, 3, ntf.SNEW(_ID, queue, keys.private), b"", ntf.IDSUB(_ID)),
            (SMP, 18, smp.SEND(MsgFlags(True), bytes(1000)), _ID, smp.OK()),
            (SMP, 18, smp.NSUB(), _ID, smp.SOK()),
        ]
        for protocol, version, command, entity_id, answer in cases:
            _case(protocol, version, command, entity_id, answer, keys, session_keys)


def _case(
    protocol: AnyProtocol,
    version: int,
    command: Any,
    entity_id: bytes,
    answer: Any,
    keys: Any,
    session_keys: Any,
) -> None:
    session = protocol.session(bytes(32), version)
    encoded = protocol.commands.encode(command, version)
    authorized = authorized_bytes(session, _ID, entity_id, encoded)
    auth = authorize(keys.private, session_keys.public, _ID, authorized)
    [content] = pack(session, [encode_transmission(session, _ID, entity_id, encoded, auth)])
    [request] = decode_requests(session, protocol.commands, content)
    assert isinstance(request, Request)

    def verify() -> None:
        assert verify_authorization(
            keys.public, session_keys.private, _ID, request.authorized, request.auth
        )

    parse = _time(lambda: decode_requests(session, protocol.commands, content))
    check = _time(verify)
    encode = _time(
        lambda: pack(session, [encode_reply(session, protocol.responses, _ID, entity_id, answer)])
    )
    name = f"{protocol.scheme.name} {type(command).__name__}"
    kind = "X25519" if len(auth) == 80 else "Ed25519" if len(auth) == 64 else "Ed448"
    print(
        f"  {name:10} {kind:8}  parse {parse:5.1f}  verify {check:6.1f}  encode {encode:4.1f}"
        f"  sum {parse + check + encode:6.1f}"
    )


def _time(work: Callable[[], object]) -> float:
    started = time.process_time()
    for _ in range(ROUNDS):
        work()
    return (time.process_time() - started) / ROUNDS * 1e6
