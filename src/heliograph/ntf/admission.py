"""Authorization of clients' commands: which are executed, and which are refused."""

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from heliograph.crypto.authorization import verify_authorization
from heliograph.db.errors import DatabaseError
from heliograph.ntf.limits import ClientState, LimitName, QueuedCommand
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.store.owners import is_recent
from heliograph.ntf.store.records import Subscription, Token
from heliograph.ntf.store.store import NtfStore
from heliograph.runtime.clock import steady_time
from heliograph.transport.server import Answer
from heliograph.wire import ntf
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf import NtfCommand, NtfResponse
from heliograph.wire.requests import Request

logger = logging.getLogger(__name__)

PONG = ntf.PONG()
AUTH = ntf.ERR(ErrorCode.AUTH)
INTERNAL = ntf.ERR(ErrorCode.INTERNAL)
QUOTA = ntf.ERR(ErrorCode.QUOTA)

_SUBSCRIPTION_COMMANDS = (ntf.SCHK, ntf.SDEL)


class Admission(NamedTuple):
    """Commands to execute, in order, and answers to those that are refused.

    `subscriptions` are those that the commands name, by ID.
    """

    admitted: list[QueuedCommand]
    refused: list[Answer]
    subscriptions: dict[bytes, Subscription]


class Authorizer:
    """Decides which commands are executed.

    A refusal costs the same, cached or not and whether the entity exists or not: one check of the
    authorization and one read of the store. Otherwise its time would show which tokens exist.
    """

    def __init__(self, store: NtfStore, outbox: Outbox, observer: NtfObserver) -> None:
        self._store = store
        self._outbox = outbox
        self._observer = observer

    def answer_at_once(
        self, client: ClientState, request: Request[NtfCommand]
    ) -> NtfResponse | QueuedCommand | None:
        """Return the answer if it needs nothing from the store, else the command or None."""
        command = request.command
        if isinstance(command, ntf.PING):
            client.may_command(time.monotonic())  # it is never refused, only throttled
            return PONG
        if not isinstance(command, ntf.TCHK):
            return None
        token = self._store.cached(request.entity_id)
        if token is None or not is_recent(token.seen_at, _now()):
            return None  # once a day the store records that its owner was seen
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
        seen: dict[bytes, Token] = {}
        now = _now()
        for item, verdict in zip(queued, verdicts, strict=True):
            if verdict is None:
                verdict = await self._check_loaded(client, item.request, found)
            if verdict is True:
                admission.admitted.append(item)
                token = await self._owned(item.request, found)
                if token is not None and not is_recent(token.seen_at, now):
                    seen[token.token_id] = token
            else:
                admission.refused.append(_answer(item.request, verdict or AUTH))
        if seen:
            await self._mark_seen(list(seen.values()))
        return admission

    async def _owned(
        self, request: Request[NtfCommand], found: dict[bytes, Subscription]
    ) -> Token | None:
        """Return the token whose owner sent an authorized command, if it names one."""
        if isinstance(request.command, ntf.PING | ntf.TNEW):
            return None
        return await token_of(self._store, request, found)

    async def _mark_seen(self, seen: Sequence[Token]) -> None:
        """Record, before commands are answered, that owners were seen: it restores their tokens."""
        try:
            restored, pushes = await self._store.mark_seen(seen)
        except DatabaseError as exc:
            logger.error("the owners of %d tokens cannot be recorded: %s", len(seen), exc)
            return
        self._observer.owners_seen(seen, restored)
        self._outbox.offer(pushes)

    def _check(self, client: ClientState, item: QueuedCommand) -> bool | ntf.ERR | None:
        """Return whether a command is authorized, an error, or None if the store must be read."""
        request, is_denied = item
        command = request.command
        if isinstance(command, ntf.PING):
            client.may_command(time.monotonic())
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
        token = await token_of(self._store, request, found)
        is_authorized = _is_authorized(client, request, None if token is None else token.auth_key)
        return is_authorized and token is not None

    def _quota(self, limit: LimitName) -> ntf.ERR:
        self._observer.quota_exceeded(limit)
        return QUOTA


async def token_of(
    store: NtfStore, request: Request[NtfCommand], found: dict[bytes, Subscription]
) -> Token | None:
    """Return the token that a command is about; subscriptions are among those `found`."""
    if not isinstance(request.command, _SUBSCRIPTION_COMMANDS):
        return await store.token(_token_id(request))
    subscription = found.get(request.entity_id)
    return None if subscription is None else await store.token(subscription.token_id)


def _now() -> int:
    return round(steady_time() * 1000)


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
