"""Runs the token machine: stores what a step says, asks the router, and gives it the answer."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from heliograph.agent import ntf_store
from heliograph.agent.clients import is_temporary
from heliograph.agent.errors import Prohibited as ProhibitedError
from heliograph.agent.errors import RouterError
from heliograph.agent.ntf_context import NtfContext
from heliograph.agent.ntf_records import NtfToken
from heliograph.agent.token_machine import (
    Ask,
    Checked,
    Create,
    CronSet,
    Do,
    Effect,
    Input,
    Prohibited,
    QueueDeletion,
    Refused,
    Registered,
    Replaced,
    Request,
    Send,
    Simple,
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
from heliograph.wire.tokens import TokenStatus

Act = Callable[[Do], Awaitable[None]]
"""Creates or deletes the subscriptions of all connections."""

LOCK = "ntf token"


class CronUnset(RouterError):
    """All is well but for how often the device is woken: the router could not be told."""

    def __init__(self, reason: str, token: NtfToken | None) -> None:
        super().__init__(reason, temporary=True)
        self.token = token


class _Stored(NamedTuple):
    before: NtfToken | None
    token: NtfToken | None
    effects: tuple[Effect, ...]


class TokenDriver:
    """`deleting` hears of a router that has a token to delete; `changed` of the token stored."""

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
        """Once nothing is being asked: a push may be faster than the answer it follows."""
        async with self._context.store.locks.hold(LOCK):
            return await self.load()

    async def run(self, event: Input, *, doubt: bool = False) -> NtfToken | None:
        """Until there is nothing left to ask. Gives the token as it is then.

        What could not be asked is stored, and `RESUME` asks it again. With `doubt`, a token that
        turns out to be as it should be has no consequences.
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
            if token != before:
                self._changed(token)
            skip = doubt and isinstance(current, Checked) and token == before
            for effect in effects:
                if isinstance(effect, Prohibited):
                    raise ProhibitedError(effect.reason)
                if isinstance(effect, QueueDeletion):
                    self._deleting(effect.token.ntf_address)
                elif isinstance(effect, Do) and not skip:
                    await self._act(effect)
            for effect in effects:
                if not isinstance(effect, Send) or token is None:
                    continue
                try:
                    answer = await self._ask(token, effect)
                except RouterError as exc:
                    if effect.request is Request.TCRN:
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
                token = _new_token(effect.asked)
                effects = (*effects, Send(Request.TNEW))
        if token != before:
            ntf_store.save_token(tx, vault, token)
        return _Stored(before, token, effects)

    async def _ask(self, token: NtfToken, send: Send) -> Input:
        """The answer as an input. Raises `RouterError` if there is none that means anything."""
        try:
            self._context.clients.moved(token.ntf_address)
            client = await self._context.clients.ntf(token.ntf_address, at_once=True)
            entity_id = b"" if send.request is Request.TNEW else token.token_id or b""
            answer = await client.request(_command(token, send), entity_id, token.auth_keys.private)
            return _input(token, send, answer)
        except RequestRefused as exc:
            if is_temporary(exc):
                raise RouterError(
                    f"the notification router cannot serve this now: {exc}", temporary=True
                ) from exc
            return Refused(send.request, exc.error is ErrorCode.AUTH, send.asked)
        except ClientError as exc:
            raise RouterError(
                f"the notification router did not answer properly: {exc}",
                temporary=not isinstance(exc, UnexpectedReply),
            ) from exc


def _new_token(asked: Ask) -> NtfToken:
    return NtfToken(
        asked.device,
        asked.ntf_address,
        generate_key_pair(Algorithm.ED25519),
        generate_key_pair(Algorithm.X25519),
        asked.mode,
    )


def _command(token: NtfToken, send: Send) -> Any:
    match send.request:
        case Request.TNEW:
            return ntf.TNEW(token.device, token.auth_keys.public, token.dh_keys.public)
        case Request.TVFY:
            return ntf.TVFY(send.code)
        case Request.TCHK:
            return ntf.TCHK()
        case Request.TRPL:
            return ntf.TRPL(token.device if send.asked is None else send.asked.device)
        case Request.TCRN:
            return ntf.TCRN(send.minutes)


def _input(token: NtfToken, send: Send, answer: Any) -> Input:
    match send.request, answer:
        case Request.TNEW, ntf.IDTKN():
            try:
                return Registered(answer.token_id, dh(answer.dh_key, token.dh_keys.private))
            except CryptoError as exc:
                raise UnexpectedReply("the router's key is of no use") from exc
        case Request.TVFY, ntf.OK():
            return Simple.VERIFIED
        case Request.TCHK, ntf.TKN():
            return Checked(answer.status)
        case Request.TRPL, ntf.OK():
            return Replaced(token.device if send.asked is None else send.asked.device)
        case Request.TCRN, ntf.OK():
            return CronSet(send.minutes)
        case _:
            raise UnexpectedReply("the answer belongs to another command")


def _refusal(earlier: RouterError | None, answer: Input) -> RouterError | None:
    """What the app must be told at the end, unless what follows makes good for it."""
    match answer:
        case Refused(request=Request.TNEW):
            return RouterError(
                "the notification router refused the device token: is it one of a provider that"
                " the router serves?",
                temporary=False,
            )
        case Refused(request=Request.TVFY):
            return RouterError(
                "the notification router refused the code: register the token again to be sent"
                " a new one",
                temporary=False,
            )
        case Registered():
            return None
        case _:
            return earlier
