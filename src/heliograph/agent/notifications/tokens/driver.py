"""Runs the token machine: stores a step, sends its commands, and feeds it the answers."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from heliograph.agent.clients import is_temporary
from heliograph.agent.errors import Prohibited, RouterError
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NtfContext
from heliograph.agent.notifications.records import NtfToken
from heliograph.agent.notifications.tokens.machine import (
    CommandRefused,
    Create,
    CronConfirmed,
    Effect,
    Input,
    QueueDeletion,
    RaiseProhibited,
    Register,
    Registered,
    Replaced,
    SendCommand,
    SubscriptionsAction,
    TokenChecked,
    TokenCommand,
    TokenEvent,
    step,
)
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.transport.errors import ClientError, RequestRefused, UnexpectedReply
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import TokenStatus
from heliograph.wire.table import Command

TokenResponse = ntf.IDTKN | ntf.TKN | ntf.OK

Act = Callable[[SubscriptionsAction], Awaitable[None]]
"""Creates or deletes the subscriptions of all connections."""

LOCK = "ntf token"


class CronUnset(RouterError):
    """The token works, but TCRN failed: the wake-up interval is not set."""

    def __init__(self, reason: str, token: NtfToken | None) -> None:
        super().__init__(reason, temporary=True)
        self.token = token


class _Stored(NamedTuple):
    before: NtfToken | None
    token: NtfToken | None
    effects: tuple[Effect, ...]


class TokenDriver:
    """`deleting` is called with a router that has a token to delete, `changed` with the token."""

    def __init__(
        self,
        context: NtfContext,
        act: Act,
        deleting: Callable[[ServerAddress], None],
        changed: Callable[[NtfToken | None], None],
    ) -> None:
        self._context = context
        self._act = act
        self._deleting = deleting
        self._changed = changed

    async def load(self) -> NtfToken | None:
        vault = self._context.store.vault
        return await self._context.store.read(lambda tx: ntf_store.load_token(tx, vault))

    async def load_settled(self) -> NtfToken | None:
        """Return the token once no command is in flight: a push may overtake an answer."""
        async with self._context.store.locks.hold(LOCK):
            return await self.load()

    async def run(self, event: Input, *, doubt: bool = False) -> NtfToken | None:
        """Run until no command is left, and return the token.

        Commands that failed are stored, and `RESUME` repeats them. With `doubt`, a check that
        confirms the token has no effects.
        """
        async with self._context.store.locks.hold(LOCK):
            return await self._run(event, doubt=doubt)

    async def _run(self, event: Input, *, doubt: bool) -> NtfToken | None:
        events = [event]
        refusal: RouterError | None = None
        failure: RouterError | None = None
        unset: RouterError | None = None
        token: NtfToken | None = None
        while events:
            current = events.pop(0)
            before, token, effects = await self._store(current)
            if token != before and not isinstance(current, CronConfirmed):
                self._changed(token)
            skip = doubt and isinstance(current, TokenChecked) and token == before
            for effect in effects:
                if isinstance(effect, RaiseProhibited):
                    raise Prohibited(effect.reason)
                if isinstance(effect, QueueDeletion):
                    self._deleting(effect.token.ntf_address)
                elif isinstance(effect, SubscriptionsAction) and not skip:
                    await self._act(effect)
            for effect in effects:
                if not isinstance(effect, SendCommand) or token is None:
                    continue
                try:
                    answer = await self._ask(token, effect)
                except RouterError as exc:
                    if effect.request is TokenCommand.TCRN:
                        unset = exc
                    else:
                        failure = exc
                    continue
                refusal = _refusal(refusal, answer)
                events.append(answer)
        if failure is not None:
            raise failure
        if refusal is not None and (token is None or token.status is not TokenStatus.ACTIVE):
            raise refusal
        if unset is not None:
            raise CronUnset(str(unset), token)
        return token

    async def _store(self, event: Input) -> _Stored:
        return await self._context.store.write(lambda tx: self._step(tx, event))

    def _step(self, tx: Transaction, event: Input) -> _Stored:
        context, vault = self._context, self._context.store.vault
        before = ntf_store.load_token(tx, vault)
        result = step(before, event, context.settings.cron)
        token, effects = result.token, result.effects
        for effect in effects:
            if isinstance(effect, QueueDeletion):
                ntf_store.queue_deletion(tx, vault, effect.token, context.clock())
            elif isinstance(effect, Create):
                token = _new_token(effect.asked, context.clock())
                effects = (*effects, SendCommand(TokenCommand.TNEW))
        is_checked = isinstance(event, TokenChecked)
        if token is not None and is_checked:
            token = replace(token, checked_at=context.clock())
        if token != before or is_checked:
            ntf_store.save_token(tx, vault, token)
        return _Stored(before, token, effects)

    async def _ask(self, token: NtfToken, send: SendCommand) -> Input:
        """Send a command, and return the answer as an input. Raises `RouterError` if it failed."""
        try:
            self._context.clients.moved(token.ntf_address)
            client = await self._context.clients.ntf(token.ntf_address, at_once=True)
            entity_id = b"" if send.request is TokenCommand.TNEW else token.token_id or b""
            answer = await client.request(_command(token, send), entity_id, token.auth_keys.private)
            age = self._context.clock() - token.created_at
            may_replace = age >= self._context.settings.replace_token_after
            return _input(token, send, answer, may_replace=may_replace)
        except RequestRefused as exc:
            if is_temporary(exc):
                raise RouterError(
                    f"the notification router cannot serve this now: {exc}", temporary=True
                ) from exc
            return CommandRefused(send.request, exc.error is ErrorCode.AUTH, send.asked)
        except ClientError as exc:
            raise RouterError(
                f"the request to the notification router failed: {exc}",
                temporary=not isinstance(exc, UnexpectedReply),
            ) from exc


def _new_token(asked: Register, now: float) -> NtfToken:
    return NtfToken(
        asked.device,
        asked.ntf_address,
        generate_key_pair(Algorithm.ED25519),
        generate_key_pair(Algorithm.X25519),
        asked.mode,
        created_at=now,
        checked_at=now,
    )


def _command(token: NtfToken, send: SendCommand) -> Command[TokenResponse]:
    match send.request:
        case TokenCommand.TNEW:
            return ntf.TNEW(token.device, token.auth_keys.public, token.dh_keys.public)
        case TokenCommand.TVFY:
            return ntf.TVFY(send.code)
        case TokenCommand.TCHK:
            return ntf.TCHK()
        case TokenCommand.TRPL:
            return ntf.TRPL(token.device if send.asked is None else send.asked.device)
        case TokenCommand.TCRN:
            return ntf.TCRN(send.minutes)


def _input(
    token: NtfToken, send: SendCommand, answer: TokenResponse, *, may_replace: bool
) -> Input:
    match send.request, answer:
        case TokenCommand.TNEW, ntf.IDTKN():
            try:
                return Registered(answer.token_id, dh(answer.dh_key, token.dh_keys.private))
            except CryptoError as exc:
                raise UnexpectedReply("the router's key is invalid") from exc
        case TokenCommand.TVFY, ntf.OK():
            return TokenEvent.VERIFIED
        case TokenCommand.TCHK, ntf.TKN():
            return TokenChecked(answer.status, may_replace)
        case TokenCommand.TRPL, ntf.OK():
            return Replaced(token.device if send.asked is None else send.asked.device)
        case TokenCommand.TCRN, ntf.OK():
            return CronConfirmed(send.minutes)
        case _:
            raise UnexpectedReply("the answer is to another command")


def _refusal(earlier: RouterError | None, answer: Input) -> RouterError | None:
    """Return the error to raise at the end, unless a later answer repairs it."""
    match answer:
        case CommandRefused(request=TokenCommand.TNEW):
            return RouterError(
                "the notification router refused the device token: is it one of a provider that"
                " the router serves?",
                temporary=False,
            )
        case CommandRefused(request=TokenCommand.TVFY):
            return RouterError(
                "the notification router refused the code: register the token again to be sent"
                " a new one",
                temporary=False,
            )
        case Registered():
            return None
        case _:
            return earlier
