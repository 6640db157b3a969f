"""Verification of commands: authorization, service signature and role.

An unknown entity, a wrong key and a wrong type of key give the same error after the same work.
"""

from collections.abc import Iterator

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.keys import verify
from heliograph.smp.clients.outgoing import AnyRequest, Requester
from heliograph.smp.store.cache import Name
from heliograph.smp.store.records import QueueRecord
from heliograph.smp.store.store import EntityKind
from heliograph.transport.handshake import Service
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode, ErrorType
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.smp import SmpCommand
from heliograph.wire.smp.fields import QueueMode
from heliograph.wire.table import PING
from heliograph.wire.transmissions import ED25519_SIGNATURE_SIZE

ENTITY_OF: dict[type[SmpCommand], EntityKind] = {
    smp.SUB: EntityKind.RECIPIENT,
    smp.KEY: EntityKind.RECIPIENT,
    smp.RKEY: EntityKind.RECIPIENT,
    smp.LSET: EntityKind.RECIPIENT,
    smp.LDEL: EntityKind.RECIPIENT,
    smp.NKEY: EntityKind.RECIPIENT,
    smp.NDEL: EntityKind.RECIPIENT,
    smp.GET: EntityKind.RECIPIENT,
    smp.ACK: EntityKind.RECIPIENT,
    smp.OFF: EntityKind.RECIPIENT,
    smp.DEL: EntityKind.RECIPIENT,
    smp.QUE: EntityKind.RECIPIENT,
    smp.SKEY: EntityKind.SENDER,
    smp.SEND: EntityKind.SENDER,
    smp.LKEY: EntityKind.LINK,
    smp.LGET: EntityKind.LINK,
    smp.NSUB: EntityKind.NOTIFIER,
}
"""The ID by which each command names its queue; commands that name none are not here."""

CLAIMING = frozenset({smp.NEW, smp.LSET})
"""Commands that may choose an ID, which must be free."""

ALLOWED_IF_BLOCKED = frozenset({smp.OFF, smp.DEL, smp.NSUB, smp.SEND})
"""Commands that a blocked queue accepts; SEND has other errors to report first."""

_NO_ENTITY_OR_AUTH = frozenset({PING, smp.PRXY, smp.PFWD, smp.RFWD})
_OF_SERVICES = frozenset({smp.SUBS, smp.NSUBS})
_SERVICE_SIGNED = frozenset({smp.NEW, smp.SUB, smp.NSUB})
_ROLES: dict[type[SmpCommand], ServiceRole | None] = {
    PING: None,
    smp.NSUB: ServiceRole.NOTIFIER,
    smp.NSUBS: ServiceRole.NOTIFIER,
    smp.RFWD: ServiceRole.PROXY,
}
"""The role that a service session needs for a command; MESSAGING for all others."""


def claimed_names(command: SmpCommand) -> Iterator[Name]:
    """Return the IDs that a command chooses for its queue."""
    if isinstance(command, smp.LSET):
        yield EntityKind.LINK, command.link_id
    elif isinstance(command, smp.NEW):
        data = command.queue_data
        if data is not None and data.link is not None:
            yield EntityKind.SENDER, data.link.sender_id
            if data.mode is QueueMode.CONTACT:
                yield EntityKind.LINK, data.link.link_id


def check(client: Requester, request: AnyRequest, queue: QueueRecord | None) -> ErrorType | None:
    """Return the error that answers the command, or None if it may be executed."""
    kind = type(request.command)
    service = client.service
    if queue is None and kind in ENTITY_OF:
        _is_authorized(client, request, None)
        return ErrorCode.AUTH
    if service is not None and _ROLES.get(kind, ServiceRole.MESSAGING) not in (None, service.role):
        return ErrorCode.CMD_PROHIBITED
    if kind in _NO_ENTITY_OR_AUTH:
        return None
    if kind in _OF_SERVICES:
        return None if _is_from_service(service, request) else ErrorCode.SERVICE
    if not _service_signature_fits(service, request):
        return ErrorCode.SERVICE
    if not _is_authorized(client, request, queue):
        return ErrorCode.AUTH
    if queue is not None and queue.blocked is not None and kind not in ALLOWED_IF_BLOCKED:
        return queue.blocked
    return None


def _is_authorized(client: Requester, request: AnyRequest, queue: QueueRecord | None) -> bool:
    command = request.command
    keys: tuple[bytes | None, ...]
    match command:  # the frequent commands first
        case smp.SEND():
            if not request.auth:
                return queue is not None and queue.sender_key is None
            keys = (None if queue is None else queue.sender_key,)
        case smp.NSUB():
            notifier = None if queue is None else queue.notifier
            keys = (None if notifier is None else notifier.key,)
        case smp.NEW():
            keys = (command.rcv_auth_key,)
        case smp.SKEY() | smp.LKEY():
            sender_key = command.sender_key
            keys = (sender_key if queue and _may_secure(sender_key, queue) else None,)
        case smp.LGET():
            return queue is not None and queue.is_contact
        case _:
            keys = (None,) if queue is None else queue.recipient_keys
    authorized = _authorized(client.service, request)
    private, corr_id, auth = client.session_private, request.corr_id, request.auth
    for key in keys:  # noqa: SIM110  a generator adds 3 % to NSUB
        if verify_authorization(key, private, corr_id, authorized, auth):
            return True
    return False


def _may_secure(sender_key: bytes, queue: QueueRecord) -> bool:
    return queue.mode is QueueMode.MESSAGING and queue.sender_key in (None, sender_key)


def _authorized(service: Service | None, request: AnyRequest) -> bytes:
    """Return what the entity's key signs, which includes the service, so that none is swapped."""
    if service is None or request.service_signature is None:
        return request.authorized
    return service.cert_hash + request.authorized


def _service_signature_fits(service: Service | None, request: AnyRequest) -> bool:
    signature = request.service_signature
    if service is None or type(request.command) not in _SERVICE_SIGNED:
        return signature is None
    return signature is not None and verify(service.key, signature, request.authorized)


def _is_from_service(service: Service | None, request: AnyRequest) -> bool:
    return (
        service is not None
        and request.service_signature is None
        and len(request.auth) == ED25519_SIGNATURE_SIZE
        and request.entity_id == service.service_id
        and verify(service.key, request.auth, request.authorized)
    )
