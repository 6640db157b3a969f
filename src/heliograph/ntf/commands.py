"""What each command does, once it was found well formed.

Commands of one client are executed in order. An unknown entity costs what a wrong key costs.
"""

import logging
import os
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair, public_key
from heliograph.db.errors import DatabaseError
from heliograph.ntf.chronicle import Chronicle
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.limits import ClientState, Limits, RateLimits
from heliograph.ntf.outbox import Outbox
from heliograph.ntf.records import CODE_SIZE, ID_SIZE, Owed, QueueKey, Subscription, Token
from heliograph.ntf.stats import Stats
from heliograph.ntf.store import Store
from heliograph.ntf.subscriptions import Added, NewSubscription, Refusal, Server
from heliograph.ntf.tokens import NewToken
from heliograph.wire import ntf
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request
from heliograph.wire.tokens import (
    DeviceToken,
    PushProvider,
    decode_token_text,
    encode_token_text,
)

logger = logging.getLogger(__name__)

OK = ntf.OK()
PONG = ntf.PONG()
AUTH = ntf.ERR(ErrorCode.AUTH)
INTERNAL = ntf.ERR(ErrorCode.INTERNAL)
SYNTAX = ntf.ERR(ErrorCode.CMD_SYNTAX)
QUOTA = ntf.ERR(ErrorCode.QUOTA)
MIN_CRON_MINUTES = 20

_TOKEN_COMMANDS = (ntf.TVFY, ntf.TCHK, ntf.TRPL, ntf.TDEL, ntf.TCRN)
_SUBSCRIPTION_COMMANDS = (ntf.SCHK, ntf.SDEL)

Subscribe = Callable[[Server, QueueKey], None]


class Commands:
    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        stats: Stats,
        limits: Limits,
        providers: frozenset[PushProvider],
        subscribe: Subscribe,
        chronicle: Chronicle,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._stats = stats
        self._limits = limits
        self._rates = RateLimits(limits)
        self._providers = providers
        self._subscribe = subscribe
        self._chronicle = chronicle
        self._handlers: dict[type, Callable[..., Coroutine[Any, Any, Any]]] = {
            ntf.TVFY: self._tvfy,
            ntf.TCHK: self._tchk,
            ntf.TRPL: self._trpl,
            ntf.TDEL: self._tdel,
            ntf.TCRN: self._tcrn,
            ntf.SCHK: self._schk,
            ntf.SDEL: self._sdel,
        }

    def answer_now(self, client: ClientState, request: Request) -> Any:
        """The answer, if it needs nothing from the store; else None."""
        command = request.command
        if isinstance(command, ntf.PING):
            return PONG
        if not isinstance(command, ntf.TCHK):
            return None
        token = self._store.cached(request.entity_id)
        if token is None:
            return None
        if not self._rates.may_command(client):
            return QUOTA
        return ntf.TKN(token.status) if _authorized(client, request, token.auth_key) else AUTH

    async def execute(self, client: ClientState, requests: list[Request]) -> list[Any]:
        """The answer to each. Subscriptions asked for one after another are made together."""
        try:
            found = await self._load(requests)
        except DatabaseError as exc:
            logger.error("commands cannot be served: %s", exc)
            return [INTERNAL] * len(requests)
        answers: list[Any] = []
        batch: list[tuple[int, NewSubscription]] = []
        for request in requests:
            if batch and not isinstance(request.command, ntf.SNEW):
                await self._subscribe_all(batch, answers)
                batch = []
            answer = await self._try(client, request, found)
            if isinstance(answer, NewSubscription):
                batch.append((len(answers), answer))
            answers.append(answer)
        if batch:
            await self._subscribe_all(batch, answers)
        return answers

    async def _load(self, requests: list[Request]) -> dict[bytes, Subscription]:
        token_ids, subscription_ids = [], []
        for request in requests:
            command = request.command
            if isinstance(command, _TOKEN_COMMANDS):
                token_ids.append(request.entity_id)
            elif isinstance(command, ntf.SNEW):
                token_ids.append(command.token_id)
            elif isinstance(command, _SUBSCRIPTION_COMMANDS):
                subscription_ids.append(request.entity_id)
        missing = [token_id for token_id in token_ids if not self._store.is_cached(token_id)]
        if not missing and not subscription_ids:
            return {}
        subs = await self._store.load(missing, subscription_ids)
        return {sub.subscription_id: sub for sub in subs}

    async def _try(
        self, client: ClientState, request: Request, found: dict[bytes, Subscription]
    ) -> Any:
        try:
            return await self._one(client, request, found)
        except DatabaseError as exc:
            logger.error("a command failed: %s", exc)
            return INTERNAL

    async def _one(
        self, client: ClientState, request: Request, found: dict[bytes, Subscription]
    ) -> Any:
        command = request.command
        if isinstance(command, ntf.PING):
            return PONG
        if not self._rates.may_command(client):
            return QUOTA
        if isinstance(command, ntf.TNEW):
            if not _authorized(client, request, command.auth_key):
                return AUTH
            return await self._tnew(client, command)
        subscription = found.get(request.entity_id)
        token_id = _token_id(request, subscription)
        token = None if token_id is None else await self._store.token(token_id)
        if not _authorized(client, request, None if token is None else token.auth_key):
            return AUTH
        if token is None:
            return AUTH
        if isinstance(command, ntf.SNEW):
            return _new_subscription(command, token) if may_subscribe(token.status) else AUTH
        if isinstance(command, _SUBSCRIPTION_COMMANDS):
            if not may_subscribe(token.status):
                return AUTH
            if isinstance(command, ntf.SDEL):
                del found[request.entity_id]
            return await self._handlers[type(command)](command, subscription)
        return await self._handlers[type(command)](command, token)

    # Tokens.

    async def _tnew(self, client: ClientState, command: ntf.TNEW) -> Any:
        if not self._rates.may_register(client):
            return QUOTA
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
        token, owed = await self._store.register(new)
        if token is None:
            return AUTH
        is_new = token.token_id == new.token_id
        if is_new:
            self._count(token.device, "tkn_created")
            self._chronicle.token("token_registered", token.token_id, token.device)
        self._count(token.device, "ntf_vrf_queued")
        self._verification_queued(token, owed)
        self._outbox.offer(owed)
        dh_key = keys.public if is_new else public_key(token.dh_private)
        return ntf.IDTKN(token.token_id, dh_key)

    async def _tvfy(self, command: ntf.TVFY, token: Token) -> Any:
        verified, owed, removed = await self._store.verify(token.token_id, command.code)
        if verified is None:
            return AUTH
        self._outbox.offer(owed)
        self._count(token.device, "tkn_verified")
        for other in removed:
            self._chronicle.token_superseded(other)
        self._chronicle.token_verified(verified, repeated=verified.status is token.status)
        self._chronicle.owed(owed)
        return OK

    async def _tchk(self, command: ntf.TCHK, token: Token) -> Any:
        return ntf.TKN(token.status)

    async def _trpl(self, command: ntf.TRPL, token: Token) -> Any:
        refusal = self._refusal(command.token)
        if refusal is not None:
            return refusal
        replaced, owed = await self._store.replace(
            token.token_id, command.token, os.urandom(CODE_SIZE)
        )
        if replaced is None:
            return AUTH
        self._count(command.token, "tkn_replaced")
        self._count(command.token, "ntf_vrf_queued")
        self._chronicle.token("token_replaced", token.token_id, command.token)
        self._verification_queued(replaced, owed)
        self._outbox.offer(owed)
        return OK

    async def _tdel(self, command: ntf.TDEL, token: Token) -> Any:
        await self._store.delete_token(token.token_id)
        self._count(token.device, "tkn_deleted")
        self._chronicle.token_deleted(token)
        return OK

    async def _tcrn(self, command: ntf.TCRN, token: Token) -> Any:
        if 0 < command.minutes < MIN_CRON_MINUTES:
            return QUOTA
        await self._store.set_cron(token.token_id, command.minutes)
        self._chronicle.token(
            "token_periodic", token.token_id, token.device, interval=command.minutes
        )
        return OK

    def _verification_queued(self, token: Token, owed: list[Owed]) -> None:
        self._chronicle.token("token_verification_queued", token.token_id, token.device)
        self._chronicle.owed(owed)

    # Subscriptions.

    async def _subscribe_all(
        self, batch: list[tuple[int, NewSubscription]], answers: list[Any]
    ) -> None:
        """Make them in one transaction, and put the answers in their places."""
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

    def _subscribed(self, new: NewSubscription, result: Added | Refusal) -> Any:
        if isinstance(result, Refusal):
            return AUTH if result is Refusal.NOT_ALLOWED else QUOTA
        if result.is_new:
            self._stats.counters.sub_created += 1
            key = QueueKey(new.subscription_id, new.notifier_id, new.notifier_key)
            self._subscribe(result.server, key)
            self._chronicle.subscription_created(
                new.token_id, new.subscription_id, result.server.server_id
            )
        return ntf.IDSUB(result.subscription.subscription_id)

    async def _schk(self, command: ntf.SCHK, subscription: Subscription) -> Any:
        return ntf.SUB(subscription.status)

    async def _sdel(self, command: ntf.SDEL, subscription: Subscription) -> Any:
        await self._store.delete_subscription(subscription.subscription_id)
        self._stats.counters.sub_deleted += 1
        self._chronicle.subscription_deleted(subscription.token_id, subscription.subscription_id)
        return OK

    def _refusal(self, device: DeviceToken) -> Any:
        """Why a device cannot be pushed to; None if it can."""
        if device.provider not in self._providers:
            return AUTH
        try:
            return None if decode_token_text(encode_token_text(device)) == device else SYNTAX
        except WireError:
            return SYNTAX

    def _count(self, device: DeviceToken, name: str) -> None:
        """Tokens that test routers are not counted."""
        if device.provider is not PushProvider.APNS_NULL:
            counters = self._stats.counters
            setattr(counters, name, getattr(counters, name) + 1)


@lru_cache(maxsize=1024)
def _is_sound(address: str) -> bool:
    """Whether it can be connected to, now or after a restart."""
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


def _token_id(request: Request, subscription: Subscription | None) -> bytes | None:
    if isinstance(request.command, ntf.SNEW):
        return request.command.token_id
    if isinstance(request.command, _SUBSCRIPTION_COMMANDS):
        return None if subscription is None else subscription.token_id
    return request.entity_id


def _authorized(client: ClientState, request: Request, key: bytes | None) -> bool:
    return verify_authorization(
        key, client.session_private, request.corr_id, request.authorized, request.auth
    )
