"""The reference's store log: one line of text per change, decoded and encoded.

    TCREATE tknId=I token=T tokenStatus=S verifyKey=K dhKeys=P K dhSecret=D regCode=C cron=N
            [ updatedAt=SECONDS]
    TSTATUS I S      TUPDATE I T C      TCRON I N      TDELETE I      TTIME I SECONDS
    SCREATE subId=I smpQueue=Q notifierKey=K tknId=I subStatus=S[ serviceAssoc=T|F]
    SSTATUS I S[ service=T|F]           SDELETE I
    SERVICE smp://... service=I|off

A second file has the last notifications: `v1 I Q SECONDS NONCE META`. Bytes are base64url.

Pure: text in, values out. No message about a line quotes it, because lines hold keys.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.crypto.keys import public_key
from heliograph.ntf.store.records import Token
from heliograph.runtime.reference.storelog import BadLine, decode_line
from heliograph.wire.addresses import (
    Scheme,
    ServerAddress,
    SMPQueueNtf,
    decode_address,
    decode_queue,
    encode_queue,
)
from heliograph.wire.keys import (
    Algorithm,
    private_key_algorithm,
    public_key_algorithm,
)
from heliograph.wire.ntf.push import PNMessageData, decode_pn_messages, encode_pn_messages
from heliograph.wire.ntf.tokens import (
    DeviceToken,
    NtfSubStatus,
    SubscriptionState,
    TokenStatus,
    decode_token_text,
    encode_subscription_status,
    encode_token_text,
)
from heliograph.wire.primitives import b64decode, b64encode

SECRET_SIZE = 32
MAX_CRON = 65_535


@dataclass(frozen=True, slots=True)
class TokenCreated:
    token: Token
    updated_at: int | None = None


@dataclass(frozen=True, slots=True)
class TokenStatusSet:
    token_id: bytes
    status: TokenStatus


@dataclass(frozen=True, slots=True)
class TokenReplacedLine:
    token_id: bytes
    device: DeviceToken
    code: bytes


@dataclass(frozen=True, slots=True)
class CronSet:
    token_id: bytes
    minutes: int


@dataclass(frozen=True, slots=True)
class TokenDeletedLine:
    token_id: bytes


@dataclass(frozen=True, slots=True)
class TokenUsed:
    token_id: bytes
    at: int


@dataclass(frozen=True, slots=True)
class SubscriptionCreatedLine:
    subscription_id: bytes
    queue: SMPQueueNtf
    notifier_key: bytes
    token_id: bytes
    status: NtfSubStatus
    associated: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionStatusSet:
    subscription_id: bytes
    status: NtfSubStatus
    associated: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionDeletedLine:
    subscription_id: bytes


@dataclass(frozen=True, slots=True)
class ServiceSet:
    server: ServerAddress
    service_id: bytes | None


@dataclass(frozen=True, slots=True)
class LastNotification:
    token_id: bytes
    message: PNMessageData


Record = (
    TokenCreated
    | TokenStatusSet
    | TokenReplacedLine
    | CronSet
    | TokenDeletedLine
    | TokenUsed
    | SubscriptionCreatedLine
    | SubscriptionStatusSet
    | SubscriptionDeletedLine
    | ServiceSet
    | LastNotification
)

_ID = r"([A-Za-z0-9_-]+=*)"
_TOKEN = re.compile(
    rf"tknId={_ID} token=(.+?) tokenStatus=(\S+) verifyKey={_ID} dhKeys={_ID} {_ID}"
    rf" dhSecret={_ID} regCode={_ID} cron=([0-9]+)(?: updatedAt=(-?[0-9]+))?"
)
# The reference takes what follows an ERR for a part of it, and writes that after it once more.
_SUBSCRIPTION = re.compile(
    rf"subId={_ID} smpQueue=(\S+) notifierKey={_ID} tknId={_ID}"
    r" subStatus=(.+?)(?: serviceAssoc=([TF]))*"
)
_STATUS = re.compile(rf"{_ID} (\S+)")
_UPDATE = re.compile(rf"{_ID} (.+) {_ID}")
_NUMBER = re.compile(rf"{_ID} (-?[0-9]+)")
_ONE = re.compile(_ID)
_SUBSCRIPTION_STATUS = re.compile(rf"{_ID} (.+?)(?: service=([TF]))?")
_SERVICE = re.compile(rf"(\S+) service=(?:off|{_ID})")
_NOTIFICATION = re.compile(rf"{_ID} (.+)")


def decode_record(line: str) -> Record:
    """Decode a line. Raises `BadLine`."""
    try:
        return decode_line(line, _KINDS, "store log")
    except BadLine:
        raise
    except ValueError:
        raise BadLine(f"{line.partition(' ')[0]}: unknown status") from None


def encode_record(record: TokenCreated | SubscriptionCreatedLine | LastNotification) -> str:
    """Encode a record of an export."""
    match record:
        case TokenCreated():
            return _encode_token(record)
        case SubscriptionCreatedLine():
            status = encode_subscription_status(record.status).decode("utf-8", "replace")
            return (
                f"SCREATE subId={b64encode(record.subscription_id)}"
                f" smpQueue={encode_queue(record.queue)}"
                f" notifierKey={b64encode(record.notifier_key)}"
                f" tknId={b64encode(record.token_id)} subStatus={_one_line(status)}"
                f" serviceAssoc={'T' if record.associated else 'F'}"
            )
        case LastNotification():
            message = encode_pn_messages([record.message]).decode()
            return f"v1 {b64encode(record.token_id)} {message}"


def _encode_token(record: TokenCreated) -> str:
    token = record.token
    updated = "" if record.updated_at is None else f" updatedAt={record.updated_at}"
    keys = f"{b64encode(public_key(token.dh_private))} {b64encode(token.dh_private)}"
    return (
        f"TCREATE tknId={b64encode(token.token_id)} token={encode_token_text(token.device)}"
        f" tokenStatus={token.status.value} verifyKey={b64encode(token.auth_key)} dhKeys={keys}"
        f" dhSecret={b64encode(token.dh_secret)} regCode={b64encode(token.code)}"
        f" cron={token.cron_minutes}{updated}"
    )


def _token(
    token_id: str,
    device: str,
    status: str,
    auth_key: str,
    _public: str,
    private: str,
    secret: str,
    code: str,
    cron: str,
    updated: str | None,
) -> Record:
    dh_private, dh_secret = b64decode(private), b64decode(secret)
    if private_key_algorithm(dh_private) is not Algorithm.X25519:
        raise BadLine("dhKeys are not X25519 keys")
    if len(dh_secret) != SECRET_SIZE:
        raise BadLine("dhSecret does not have 32 bytes")
    key = b64decode(auth_key)
    if public_key_algorithm(key) is None:
        raise BadLine("verifyKey is not a public key")
    token = Token(
        b64decode(token_id),
        decode_token_text(device),
        TokenStatus(status),
        key,
        dh_private,
        dh_secret,
        b64decode(code),
        _minutes(cron),
    )
    return TokenCreated(token, None if updated is None else int(updated))


def _subscription(
    subscription_id: str, queue: str, key: str, token_id: str, status: str, associated: str | None
) -> Record:
    notifier_key = b64decode(key)
    if private_key_algorithm(notifier_key) is None:
        raise BadLine("notifierKey is not a private key")
    return SubscriptionCreatedLine(
        b64decode(subscription_id),
        decode_queue(queue),
        notifier_key,
        b64decode(token_id),
        _status(status),
        associated == "T",
    )


def _service(server: str, service_id: str | None) -> Record:
    address = decode_address(server)
    if address.scheme is not Scheme.SMP:
        raise BadLine("not the address of a messaging router")
    return ServiceSet(address, None if service_id is None else b64decode(service_id))


def _notification(token_id: str, text: str) -> Record:
    messages = decode_pn_messages(text.encode())
    if len(messages) != 1:
        raise BadLine("more than one notification")
    return LastNotification(b64decode(token_id), messages[0])


def _status(text: str) -> NtfSubStatus:
    state, _, error = text.partition(" ")
    if bool(error) != (state == "ERR"):
        raise BadLine("unknown status")
    return NtfSubStatus(SubscriptionState(state), error.encode())


def _minutes(text: str) -> int:
    minutes = int(text)
    if minutes > MAX_CRON:
        raise BadLine("the interval is too long")
    return minutes


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


_Decode = Callable[..., Record]

_KINDS: dict[str, tuple[re.Pattern[str], _Decode]] = {
    "TCREATE": (_TOKEN, _token),
    "TSTATUS": (_STATUS, lambda i, s: TokenStatusSet(b64decode(i), TokenStatus(s))),
    "TUPDATE": (
        _UPDATE,
        lambda i, t, c: TokenReplacedLine(b64decode(i), decode_token_text(t), b64decode(c)),
    ),
    "TCRON": (_NUMBER, lambda i, n: CronSet(b64decode(i), _minutes(n))),
    "TDELETE": (_ONE, lambda i: TokenDeletedLine(b64decode(i))),
    "TTIME": (_NUMBER, lambda i, n: TokenUsed(b64decode(i), int(n))),
    "SCREATE": (_SUBSCRIPTION, _subscription),
    "SSTATUS": (
        _SUBSCRIPTION_STATUS,
        lambda i, s, a: SubscriptionStatusSet(b64decode(i), _status(s), a == "T"),
    ),
    "SDELETE": (_ONE, lambda i: SubscriptionDeletedLine(b64decode(i))),
    "SERVICE": (_SERVICE, _service),
    "v1": (_NOTIFICATION, _notification),
}
