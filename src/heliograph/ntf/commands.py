"""Authorization and execution of clients' commands."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair, public_key
from heliograph.db.errors import DatabaseError
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.limits import ClientState, LimitName, NtfLimits, QueuedCommand
from heliograph.ntf.observer import NtfObserver
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.store.records import (
    CODE_SIZE,
    ID_SIZE,
    QueueKey,
    Subscription,
    Token,
)
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.store.subscriptions import (
    Added,
    NewSubscription,
    ServerRecord,
    SubscriptionRefusal,
)
from heliograph.ntf.store.tokens import NewToken
from heliograph.runtime.limits import AddressLimit
from heliograph.transport.server import Answer
from heliograph.wire import ntf
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf import NtfCommand, NtfResponse
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    DeviceToken,
    PushProvider,
    decode_token_text,
    encode_token_text,
)
from heliograph.wire.requests import Request

logger = logging.getLogger(__name__)

OK = ntf.OK()
PONG = ntf.PONG()
AUTH = ntf.ERR(ErrorCode.AUTH)
INTERNAL = ntf.ERR(ErrorCode.INTERNAL)
SYNTAX = ntf.ERR(ErrorCode.CMD_SYNTAX)
QUOTA = ntf.ERR(ErrorCode.QUOTA)
MIN_CRON_MINUTES = 20

_SUBSCRIPTION_COMMANDS = (ntf.SCHK, ntf.SDEL)

Subscribe = Callable[[ServerRecord, QueueKey], None]


class Admission(NamedTuple):
    """Commands to execute, in order, and answers to those that are refused.

    `subscriptions` are those that the commands name, by ID.
    """

    admitted: list[QueuedCommand]
    refused: list[Answer]
    subscriptions: dict[bytes, Subscription]


class Commands:
    """Authorizes and executes commands.

    A refusal costs the same, cached or not and whether the entity exists or not: one check of the
    authorization and one read of the store. Otherwise its time would show which tokens exist.
    """

    def __init__(
        self,
        store: NtfStore,
        outbox: Outbox,
        observer: NtfObserver,
        limits: NtfLimits,
        providers: frozenset[PushProvider],
        subscribe: Subscribe,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._observer = observer
        self._limits = limits
        self._new_tokens = AddressLimit(limits.new_tokens_per_minute)
        self._providers = providers
        self._subscribe = subscribe

    def answer_at_once(
        self, client: ClientState, request: Request[NtfCommand]
    ) -> NtfResponse | QueuedCommand | None:
        """Return the answer if it needs nothing from the store, else the command or None."""
        command = request.command
        if isinstance(command, ntf.PING):
            return PONG
        if not isinstance(command, ntf.TCHK):
            return None
        token = self._store.cached(request.entity_id)
        if token is None:
            return None
        if not client.may_command(time.monotonic()):
            return self._quota(LimitName.COMMANDS)
        if not _is_authorized(client, request, token.auth_key):
            return QueuedCommand(request, is_denied=True)
        return ntf.TKN(token.status)

    async def admit(self, client: ClientState, queued: Sequence[QueuedCommand]) -> Admission:
        """Authorize commands, with at most one read of the store for all of them."""
        verdicts = [self._check(client, item) for item in queued]
        token_ids: list[bytes] = []
        subscription_ids: list[bytes] = []
        for (request, _), verdict in zip(queued, verdicts, strict=True):
            if verdict is None or verdict is False:
                if isinstance(request.command, _SUBSCRIPTION_COMMANDS):
                    subscription_ids.append(request.entity_id)
                else:
                    token_ids.append(_token_id(request))
        found: dict[bytes, Subscription] = {}
        if token_ids or subscription_ids:
            try:
                subscriptions = await self._store.load(token_ids, subscription_ids)
            except DatabaseError as exc:
                logger.error("commands cannot be served: %s", exc)
                return Admission([], [_answer(item.request, INTERNAL) for item in queued], {})
            found = {item.subscription_id: item for item in subscriptions}
        admission = Admission([], [], found)
        for item, verdict in zip(queued, verdicts, strict=True):
            if verdict is None:
                verdict = await self._check_loaded(client, item.request, found)
            if verdict is True:
                admission.admitted.append(item)
            else:
                admission.refused.append(_answer(item.request, verdict or AUTH))
        return admission

    def _check(self, client: ClientState, item: QueuedCommand) -> bool | ntf.ERR | None:
        """Return whether a command is authorized, an error, or None if the store must be read."""
        request, is_denied = item
        command = request.command
        if isinstance(command, ntf.PING):
            return True
        if is_denied:
            return False
        if not client.may_command(time.monotonic()):
            return self._quota(LimitName.COMMANDS)
        if isinstance(command, ntf.TNEW):
            return _is_authorized(client, request, command.auth_key) or AUTH
        if isinstance(command, _SUBSCRIPTION_COMMANDS):
            return None
        token = self._store.cached(_token_id(request))
        return None if token is None else _is_authorized(client, request, token.auth_key)

    async def _check_loaded(
        self, client: ClientState, request: Request[NtfCommand], found: dict[bytes, Subscription]
    ) -> bool:
        token = await self._token_of(request, found)
        is_authorized = _is_authorized(client, request, None if token is None else token.auth_key)
        return is_authorized and token is not None

    async def _token_of(
        self, request: Request[NtfCommand], found: dict[bytes, Subscription]
    ) -> Token | None:
        if not isinstance(request.command, _SUBSCRIPTION_COMMANDS):
            return await self._store.token(_token_id(request))
        subscription = found.get(request.entity_id)
        return None if subscription is None else await self._store.token(subscription.token_id)

    async def execute(self, client: ClientState, admission: Admission) -> list[NtfResponse]:
        """Return the answer to each admitted command. Consecutive SNEW are stored together."""
        answers: list[NtfResponse] = []
        batch: list[tuple[int, NewSubscription]] = []
        for request, _ in admission.admitted:
            if batch and not isinstance(request.command, ntf.SNEW):
                await self._subscribe_all(batch, answers)
                batch = []
            try:
                result = await self._execute(client, request, admission.subscriptions)
            except DatabaseError as exc:
                logger.error("a command failed: %s", exc)
                result = INTERNAL
            if isinstance(result, NewSubscription):
                batch.append((len(answers), result))
                result = INTERNAL
            answers.append(result)
        if batch:
            await self._subscribe_all(batch, answers)
        return answers

    async def _execute(
        self, client: ClientState, request: Request[NtfCommand], found: dict[bytes, Subscription]
    ) -> NtfResponse | NewSubscription:
        command = request.command
        if isinstance(command, ntf.PING):
            return PONG
        if isinstance(command, ntf.TNEW):
            return await self._tnew(client, command)
        token = await self._token_of(request, found)
        if token is None:
            return AUTH  # deleted by an earlier command
        match command:
            case ntf.TVFY():
                return await self._tvfy(command, token)
            case ntf.TCHK():
                return ntf.TKN(token.status)
            case ntf.TRPL():
                return await self._trpl(command, token)
            case ntf.TDEL():
                return await self._tdel(token)
            case ntf.TCRN():
                return await self._tcrn(command, token)
        if not may_subscribe(token.status):
            return AUTH
        match command:
            case ntf.SNEW():
                return _new_subscription(command, token)
            case ntf.SCHK():
                return ntf.SUB(found[request.entity_id].status)
            case ntf.SDEL():
                return await self._sdel(found.pop(request.entity_id))

    # Tokens.

    async def _tnew(self, client: ClientState, command: ntf.TNEW) -> NtfResponse:
        is_few = self._new_tokens.take(client.address, time.monotonic())
        if not is_few or not await self._store.sharing.may_register(client.address):
            return self._quota(LimitName.NEW_TOKENS)
        refusal = self._refusal(command.token)
        if refusal is not None:
            return refusal
        keys = generate_key_pair(Algorithm.X25519)
        try:
            secret = dh(command.dh_key, keys.private)
        except CryptoError:
            return ntf.ERR(ErrorCode.CRYPTO)
        new = NewToken(
            os.urandom(ID_SIZE),
            command.token,
            command.auth_key,
            command.dh_key,
            keys,
            secret,
            os.urandom(CODE_SIZE),
        )
        registration = await self._store.register(new)
        token, pushes = registration.token, registration.pushes
        self._observer.tokens_removed(registration.removed, "superseded")
        if token is None:
            return AUTH
        is_new = token.token_id == new.token_id
        if is_new:
            self._observer.token_registered(token)
        self._observer.verification_queued(token, pushes)
        self._outbox.offer(pushes)
        dh_key = keys.public if is_new else public_key(token.dh_private)
        return ntf.IDTKN(token.token_id, dh_key)

    async def _tvfy(self, command: ntf.TVFY, token: Token) -> NtfResponse:
        verified, pushes, removed = await self._store.verify(token.token_id, command.code)
        if verified is None:
            return AUTH
        self._outbox.offer(pushes)
        repeated = verified.status is token.status
        self._observer.token_verified(verified, repeated=repeated, removed=removed, due=pushes)
        return OK

    async def _trpl(self, command: ntf.TRPL, token: Token) -> NtfResponse:
        refusal = self._refusal(command.token)
        if refusal is not None:
            return refusal
        replaced, pushes = await self._store.replace(
            token.token_id, command.token, os.urandom(CODE_SIZE)
        )
        if replaced is None:
            return AUTH
        self._observer.token_replaced(replaced)
        self._observer.verification_queued(replaced, pushes)
        self._outbox.offer(pushes)
        return OK

    async def _tdel(self, token: Token) -> NtfResponse:
        await self._store.delete_token(token.token_id)
        self._observer.token_deleted(token)
        return OK

    async def _tcrn(self, command: ntf.TCRN, token: Token) -> NtfResponse:
        if 0 < command.minutes < MIN_CRON_MINUTES:
            return QUOTA
        await self._store.set_cron(token.token_id, command.minutes)
        self._observer.token_periodic(token, command.minutes)
        return OK

    # Subscriptions.

    async def _subscribe_all(
        self, batch: list[tuple[int, NewSubscription]], answers: list[NtfResponse]
    ) -> None:
        """Store them in one transaction, and put the answers in their places."""
        limit = self._limits.subscriptions_per_token
        try:
            results = await self._store.add_subscriptions([new for _, new in batch], limit)
        except DatabaseError as exc:
            logger.error("subscriptions cannot be made: %s", exc)
            for place, _ in batch:
                answers[place] = INTERNAL
            return
        for (place, new), result in zip(batch, results, strict=True):
            answers[place] = self._subscribed(new, result)

    def _subscribed(self, new: NewSubscription, result: Added | SubscriptionRefusal) -> NtfResponse:
        if isinstance(result, SubscriptionRefusal):
            if result is SubscriptionRefusal.NOT_ALLOWED:
                return AUTH
            return self._quota(LimitName.SUBSCRIPTIONS)
        if result.is_new:
            key = QueueKey(new.subscription_id, new.notifier_id, new.notifier_key)
            self._subscribe(result.server, key)
            self._observer.subscription_created(
                new.token_id, new.subscription_id, result.server.server_id
            )
        return ntf.IDSUB(result.subscription.subscription_id)

    async def _sdel(self, subscription: Subscription) -> NtfResponse:
        await self._store.delete_subscription(subscription.subscription_id)
        self._observer.subscription_deleted(subscription.token_id, subscription.subscription_id)
        return OK

    def _quota(self, limit: LimitName) -> ntf.ERR:
        self._observer.quota_exceeded(limit)
        return QUOTA

    def _refusal(self, device: DeviceToken) -> ntf.ERR | None:
        """Return the error if the device cannot be pushed to."""
        if device.provider not in self._providers:
            return AUTH
        if isinstance(device, APNSDeviceToken):
            return None  # whatever it is: the provider knows which tokens are valid
        try:
            return None if decode_token_text(encode_token_text(device)) == device else SYNTAX
        except WireError:
            return SYNTAX


@lru_cache(maxsize=1024)
def _is_sound(address: str) -> bool:
    """Return whether the address can be decoded again, and connected to."""
    try:
        port = decode_address(address).effective_port
    except WireError:
        return False
    return port > 0 and address.isascii() and address.isprintable()


def _new_subscription(command: ntf.SNEW, token: Token) -> NewSubscription | ntf.ERR:
    address = str(command.queue.server)
    if not _is_sound(address):
        return SYNTAX
    return NewSubscription(
        os.urandom(ID_SIZE),
        token.token_id,
        address,
        command.queue.notifier_id,
        command.notifier_key,
    )


def _token_id(request: Request[NtfCommand]) -> bytes:
    """Return the ID of the token that a command names, other than by a subscription."""
    command = request.command
    return command.token_id if isinstance(command, ntf.SNEW) else request.entity_id


def _is_authorized(client: ClientState, request: Request[NtfCommand], key: bytes | None) -> bool:
    return verify_authorization(
        key, client.session_private, request.corr_id, request.authorized, request.auth
    )


def _answer(request: Request[NtfCommand], message: NtfResponse) -> Answer:
    return Answer(request.corr_id, request.entity_id, message)
