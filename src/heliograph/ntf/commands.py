"""What each command does, once it was found well formed.

Commands of one client are executed in order. An unknown entity costs what a wrong key costs.
"""

import os
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair, public_key
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.limits import ClientState, Limits, RateLimits
from heliograph.ntf.outbox import Outbox
from heliograph.ntf.records import CODE_SIZE, ID_SIZE, QueueKey, Subscription, Token
from heliograph.ntf.stats import Stats
from heliograph.ntf.store import Store
from heliograph.ntf.subscriptions import NewSubscription, Server
from heliograph.ntf.tokens import NewToken
from heliograph.wire import ntf
from heliograph.wire.addresses import encode_address
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request
from heliograph.wire.tokens import DeviceToken, PushProvider

OK = ntf.OK()
AUTH = ntf.ERR(ErrorCode.AUTH)
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
        journal: Callable[..., None],
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._stats = stats
        self._limits = limits
        self._rates = RateLimits(limits)
        self._providers = providers
        self._subscribe = subscribe
        self._journal = journal
        self._handlers: dict[type, Callable[..., Coroutine[Any, Any, Any]]] = {
            ntf.TVFY: self._tvfy,
            ntf.TCHK: self._tchk,
            ntf.TRPL: self._trpl,
            ntf.TDEL: self._tdel,
            ntf.TCRN: self._tcrn,
            ntf.SCHK: self._schk,
            ntf.SDEL: self._sdel,
        }

    async def execute(self, client: ClientState, requests: list[Request]) -> list[Any]:
        """The answer to each."""
        found = await self._load(requests)
        return [await self._one(client, request, found) for request in requests]

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
        missing = [token_id for token_id in token_ids if self._store.cached(token_id) is None]
        if not missing and not subscription_ids:
            return {}
        subs = await self._store.load(missing, subscription_ids)
        return {sub.subscription_id: sub for sub in subs}

    async def _one(
        self, client: ClientState, request: Request, found: dict[bytes, Subscription]
    ) -> Any:
        command = request.command
        if isinstance(command, ntf.PING):
            return ntf.PONG()
        if not self._rates.may_command(client):
            return QUOTA
        if isinstance(command, ntf.TNEW):
            if not _authorized(client, request, command.auth_key):
                return AUTH
            return await self._tnew(client, command)
        subscription = found.get(request.entity_id)
        token_id = _token_id(request, subscription)
        token = None if token_id is None else self._store.cached(token_id)
        if not _authorized(client, request, None if token is None else token.auth_key):
            return AUTH
        if token is None:
            return AUTH
        if isinstance(command, ntf.SNEW):
            return await self._snew(command, token)
        if isinstance(command, _SUBSCRIPTION_COMMANDS):
            if not may_subscribe(token.status):
                return AUTH
            return await self._handlers[type(command)](command, subscription)
        return await self._handlers[type(command)](command, token)

    # Tokens.

    async def _tnew(self, client: ClientState, command: ntf.TNEW) -> Any:
        if not self._rates.may_register(client):
            return QUOTA
        if command.token.provider not in self._providers:
            return AUTH
        keys = generate_key_pair(Algorithm.X25519)
        try:
            dh(command.dh_key, keys.private)
        except CryptoError:
            return ntf.ERR(ErrorCode.CRYPTO)
        new = NewToken(
            os.urandom(ID_SIZE),
            command.token,
            command.auth_key,
            command.dh_key,
            keys,
            os.urandom(CODE_SIZE),
        )
        token, owed = await self._store.register(new)
        if token is None:
            return AUTH
        if token.token_id == new.token_id:
            self._count(token.device, "tkn_created")
            self._journal("token_registered", token.token_id, token.device)
        self._count(token.device, "ntf_vrf_queued")
        self._journal("verification_queued", token.token_id, token.device)
        self._outbox.offer(owed)
        return ntf.IDTKN(token.token_id, public_key(token.dh_private))

    async def _tvfy(self, command: ntf.TVFY, token: Token) -> Any:
        verified = await self._store.verify(token.token_id, command.code)
        if verified is None:
            return AUTH
        self._count(token.device, "tkn_verified")
        if verified.status is not token.status:
            self._journal("token_active", token.token_id, token.device)
        return OK

    async def _tchk(self, command: ntf.TCHK, token: Token) -> Any:
        return ntf.TKN(token.status)

    async def _trpl(self, command: ntf.TRPL, token: Token) -> Any:
        if command.token.provider not in self._providers:
            return AUTH
        replaced, owed = await self._store.replace(
            token.token_id, command.token, os.urandom(CODE_SIZE)
        )
        if replaced is None:
            return AUTH
        self._count(command.token, "tkn_replaced")
        self._count(command.token, "ntf_vrf_queued")
        self._journal("token_replaced", token.token_id, command.token)
        self._outbox.offer(owed)
        return OK

    async def _tdel(self, command: ntf.TDEL, token: Token) -> Any:
        await self._store.delete_token(token.token_id)
        self._count(token.device, "tkn_deleted")
        self._journal("token_deleted", token.token_id, token.device)
        return OK

    async def _tcrn(self, command: ntf.TCRN, token: Token) -> Any:
        if 0 < command.minutes < MIN_CRON_MINUTES:
            return QUOTA
        await self._store.set_cron(token.token_id, command.minutes)
        return OK

    # Subscriptions.

    async def _snew(self, command: ntf.SNEW, token: Token) -> Any:
        if not may_subscribe(token.status):
            return AUTH
        new = NewSubscription(
            os.urandom(ID_SIZE),
            token.token_id,
            encode_address(command.queue.server),
            command.queue.notifier_id,
            command.notifier_key,
        )
        subscription, server, created = await self._store.add_subscription(
            new, self._limits.subscriptions_per_token
        )
        if subscription is None:
            return AUTH if server is None else QUOTA
        if created and server is not None:
            self._stats.counters.sub_created += 1
            self._journal("subscription_created", token.token_id, token.device)
            self._subscribe(
                server, QueueKey(new.subscription_id, new.notifier_id, new.notifier_key)
            )
        return ntf.IDSUB(subscription.subscription_id)

    async def _schk(self, command: ntf.SCHK, subscription: Subscription) -> Any:
        return ntf.SUB(subscription.status)

    async def _sdel(self, command: ntf.SDEL, subscription: Subscription) -> Any:
        await self._store.delete_subscription(subscription.subscription_id)
        self._stats.counters.sub_deleted += 1
        return OK

    def _count(self, device: DeviceToken, name: str) -> None:
        """Tokens that test routers are not counted."""
        if device.provider is not PushProvider.APNS_NULL:
            counters = self._stats.counters
            setattr(counters, name, getattr(counters, name) + 1)


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
