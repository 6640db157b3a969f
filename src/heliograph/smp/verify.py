"""Whether a command may be executed: its authorization, its service signature, its role.

Unknown entity, wrong key and wrong kind of key get the same answer after the same work.
"""

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.keys import verify
from heliograph.smp.clients import Client
from heliograph.smp.records import Queue
from heliograph.smp.store import Entity
from heliograph.transport.handshake import Service
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.fields import QueueMode
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.requests import Request
from heliograph.wire.table import PING
from heliograph.wire.transmissions import ED25519_SIGNATURE_SIZE

ENTITY_OF = {
    smp.SUB: Entity.RECIPIENT,
    smp.KEY: Entity.RECIPIENT,
    smp.NKEY: Entity.RECIPIENT,
    smp.NDEL: Entity.RECIPIENT,
    smp.GET: Entity.RECIPIENT,
    smp.ACK: Entity.RECIPIENT,
    smp.OFF: Entity.RECIPIENT,
    smp.DEL: Entity.RECIPIENT,
    smp.QUE: Entity.RECIPIENT,
    smp.SKEY: Entity.SENDER,
    smp.SEND: Entity.SENDER,
    smp.NSUB: Entity.NOTIFIER,
}
"""By which ID a command names its queue; commands that name none are not here."""

_NOTIFIER_COMMANDS = (smp.NSUB, smp.NSUBS)
_OF_SERVICES = (smp.SUBS, smp.NSUBS)
_SERVICE_SIGNED = (smp.NEW, smp.SUB, smp.NSUB)


def check(client: Client, request: Request, queue: Queue | None) -> ErrorCode | None:
    """The error that answers the command, or None if it may be executed."""
    kind = type(request.command)
    if kind is PING:
        return None
    service = client.established.service
    if service is not None and service.role is not _role_of(kind):
        return ErrorCode.CMD_PROHIBITED
    if kind in _OF_SERVICES:
        return None if _is_from_service(client, request) else ErrorCode.SERVICE
    if not _service_signature_fits(service, request):
        return ErrorCode.SERVICE
    return None if _is_authorized(client, request, queue) else ErrorCode.AUTH


def _role_of(kind: type) -> ServiceRole:
    return ServiceRole.NOTIFIER if kind in _NOTIFIER_COMMANDS else ServiceRole.MESSAGING


def _is_authorized(client: Client, request: Request, queue: Queue | None) -> bool:
    command = request.command
    match command:
        case smp.SEND():
            if queue is not None and queue.sender_key is None:
                return not request.auth
            if not request.auth:
                return False
            key: bytes | None = None if queue is None else queue.sender_key
        case smp.NEW():
            key = command.rcv_auth_key
        case smp.SKEY():
            key = command.sender_key if queue is not None and _may_secure(command, queue) else None
        case smp.NSUB():
            key = queue.notifier.key if queue is not None and queue.notifier is not None else None
        case _:
            key = None if queue is None else queue.recipient_key
    return verify_authorization(
        key,
        client.established.session_private,
        request.corr_id,
        _authorized(client, request),
        request.auth,
    )


def _may_secure(command: smp.SKEY, queue: Queue) -> bool:
    return queue.mode is QueueMode.MESSAGING and queue.sender_key in (None, command.sender_key)


def _authorized(client: Client, request: Request) -> bytes:
    """The entity's key signs for the service too, lest a service be put in its place."""
    service = client.established.service
    if service is None or request.service_signature is None:
        return request.authorized
    return service.cert_hash + request.authorized


def _service_signature_fits(service: Service | None, request: Request) -> bool:
    signature = request.service_signature
    if service is None or type(request.command) not in _SERVICE_SIGNED:
        return signature is None
    return signature is not None and verify(service.key, signature, request.authorized)


def _is_from_service(client: Client, request: Request) -> bool:
    service = client.established.service
    return (
        service is not None
        and request.service_signature is None
        and len(request.auth) == ED25519_SIGNATURE_SIZE
        and request.entity_id == service.service_id
        and verify(service.key, request.auth, request.authorized)
    )
