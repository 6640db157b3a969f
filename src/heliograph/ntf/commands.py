"""Execution of clients' commands."""

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair, public_key
from heliograph.db.errors import DatabaseError
from heliograph.ntf.admission import AUTH, INTERNAL, PONG, QUOTA, Admission, token_of
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.limits import ClientState, LimitName, NtfLimits
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.observing.traffic import DAY, source_of
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.store.records import (
    CODE_SIZE,
    ID_SIZE,
    QueueKey,
    Subscription,
    Token,
)
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscriptions import (
    Added,
    NewSubscription,
    SubscriptionRefusal,
)
from heliograph.ntf.store.tokens import NewToken
from heliograph.runtime.clock import steady_time
from heliograph.runtime.limits import AddressLimit
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
SYNTAX = ntf.ERR(ErrorCode.CMD_SYNTAX)
PROHIBITED = ntf.ERR(ErrorCode.CMD_PROHIBITED)
MIN_CRON_MINUTES = 20

Subscribe = Callable[[ServerRecord, QueueKey], None]


class Commands:
    """Executes commands that `heliograph.ntf.admission` admitted."""

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
        token = await token_of(self._store, request, found)
        if token is None:
            return AUTH  # deleted by an earlier command
        match command:
            case ntf.TVFY():
                return await self._tvfy(command, token)
            case ntf.TCHK():
                return ntf.TKN(token.status)
            case ntf.TRPL():
                return await self._trpl(client, command, token)
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

    async def _may_push_to(self, client: ClientState, device: DeviceToken) -> ntf.ERR | None:
        """Return the error if a client may have no verification pushed to another device now."""
        self._observer.traffic.registration(client.address)
        is_few = self._new_tokens.take(client.address, time.monotonic())
        if not is_few or not await self._store.coordinator.may_register(client.address):
            return self._quota(LimitName.NEW_TOKENS)
        if self._is_paused(client.address, steady_time()):
            return self._quota(LimitName.PAUSED)
        return self._refusal(device)

    async def _tnew(self, client: ClientState, command: ntf.TNEW) -> NtfResponse:
        refusal = await self._may_push_to(client, command.token)
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

    async def _trpl(self, client: ClientState, command: ntf.TRPL, token: Token) -> NtfResponse:
        refusal = await self._may_push_to(client, command.token)
        if refusal is not None:
            return refusal
        replaced, pushes, removed = await self._store.replace(
            token.token_id, command.token, os.urandom(CODE_SIZE)
        )
        self._observer.tokens_removed(removed, "superseded")
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
                new.token_id, new.subscription_id, result.server.address
            )
        return ntf.IDSUB(result.subscription.subscription_id)

    async def _sdel(self, subscription: Subscription) -> NtfResponse:
        await self._store.delete_subscription(subscription.subscription_id)
        self._observer.subscription_deleted(subscription.token_id, subscription.subscription_id)
        return OK

    def _is_paused(self, address: str, now: float) -> bool:
        """Return whether registrations are paused; a pause may have begun yesterday."""
        sources = (source_of(address, at) for at in (now, now - DAY))
        hash_of = self._observer.journal.hash_of
        hashes = (hash_of("source", item) for item in sources)
        return self._store.restrictions.is_paused(hashes, int(now * 1000))

    def _quota(self, limit: LimitName) -> ntf.ERR:
        self._observer.quota_exceeded(limit)
        return QUOTA

    def _refusal(self, device: DeviceToken) -> ntf.ERR | None:
        """Return the error if the device cannot be pushed to."""
        if device.provider not in self._providers:
            return PROHIBITED
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
