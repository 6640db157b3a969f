"""Pending pushes, against a model: any sequence of events, on both stores."""

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from heliograph.db.dialects import Transaction
from heliograph.ntf.lifecycle import Rejected, TokenTransition, step
from heliograph.ntf.store import pending, receiving, tokens
from heliograph.ntf.store.records import Incoming, PendingPush, PushKind
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import Added, NewSubscription
from heliograph.wire.ntf.tokens import APNSDeviceToken, InvalidReason, TokenStatus
from tests.ntf.support import a_device, a_new_token, a_transaction, new_store

TTL = 1_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
KEPT = (TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE)


@dataclass
class ModelToken:
    new: tokens.NewToken
    device: APNSDeviceToken
    code: bytes
    status: TokenStatus = TokenStatus.REGISTERED
    queues: list[bytes] = field(default_factory=list)
    stored: dict[bytes, int] = field(default_factory=dict)
    """The newest notification of each queue."""
    replaced: int = -1
    """When the device was replaced while a push was pending: no push before settles it."""
    accepted: int = -1
    expired: int = -1
    """What was given up, up to this one."""
    expires_at: int = 0
    retry_at: int = 0
    verification: int | None = None
    verification_expires_at: int = 0

    @property
    def newest(self) -> int:
        return max(self.replaced, *self.stored.values(), -1)

    def has_pending(self) -> bool:
        return self.newest > max(self.accepted, self.expired)

    def reject(self, reason: InvalidReason) -> None:
        self.status = step(self.status, Rejected(reason))
        self.stored.clear()
        self.replaced = -1
        self.verification = None


class PendingPushes(RuleBasedStateMachine):
    kind = "sqlite"
    shared_url: str | None = None

    pending_pushes: Bundle[PendingPush] = Bundle("pending_pushes")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        if type(self).shared_url is None:
            type(self).shared_url = new_store(self.kind, Path(tempfile.mkdtemp()))
        self.tx: Transaction = self.stack.enter_context(a_transaction(type(self).shared_url or ""))
        self.now = 1_000_000
        self.seq = 1
        self.ids = 0
        self.tokens: dict[bytes, ModelToken] = {}

    def teardown(self) -> None:
        self.stack.close()

    def take_id(self) -> bytes:
        """The same in every run, since the order of results depends on them."""
        self.ids += 1
        return self.ids.to_bytes(24)

    def take_seq(self, count: int = 1) -> int:
        first, self.seq = self.seq, self.seq + count
        return first

    def some(self, index: int) -> ModelToken | None:
        return list(self.tokens.values())[index % len(self.tokens)] if self.tokens else None

    def owe_verification(self, token: ModelToken, seq: int) -> None:
        token.verification, token.verification_expires_at = seq, self.now + TTL

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        """Most of what is interesting happens to active tokens with several queues."""
        for index in range(count):
            self.register_new()
            self.verify(index, right=True)
            self.subscribe(index)
            self.subscribe(index)

    @rule()
    def register_new(self) -> None:
        if len(self.tokens) >= 4:
            return
        new, seq = a_new_token(token_id=self.take_id()), self.take_seq()
        assert tokens.register(self.tx, new, seq, self.now, self.now + TTL) is not None
        assert isinstance(new.device, APNSDeviceToken)
        token = self.tokens[new.token_id] = ModelToken(new, new.device, new.code)
        self.owe_verification(token, seq)

    @rule(index=st.integers(0, 3))
    def register_again(self, index: int) -> None:
        token = self.some(index)
        if token is None or token.device != token.new.device:
            return
        seq = self.take_seq()
        assert tokens.register(self.tx, token.new, seq, self.now, self.now + TTL) is not None
        token.status = step(token.status, TokenTransition.REGISTERED_AGAIN)
        self.owe_verification(token, seq)

    @rule(index=st.integers(0, 3), right=st.booleans())
    def verify(self, index: int, right: bool) -> None:
        token = self.some(index)
        if token is None:
            return
        found, _ = tokens.verify(self.tx, token.new.token_id, token.code if right else b"wrong")
        if right:
            token.status = step(token.status, TokenTransition.VERIFIED)
        assert (found is not None) == (right and token.status is TokenStatus.ACTIVE)

    @rule(index=st.integers(0, 3))
    def replace(self, index: int) -> None:
        token = self.some(index)
        if token is None:
            return
        token.device, token.code, seq = a_device(), os.urandom(32), self.take_seq()
        tokens.replace_device(
            self.tx, token.new.token_id, token.device, token.code, seq, self.now, self.now + TTL
        )
        token.status = TokenStatus.REGISTERED
        token.retry_at = self.now
        if token.has_pending():
            token.replaced = seq
        self.owe_verification(token, seq)

    @rule(index=st.integers(0, 3))
    def delete(self, index: int) -> None:
        token = self.some(index)
        if token is not None:
            tokens.delete(self.tx, token.new.token_id)
            del self.tokens[token.new.token_id]

    @rule(index=st.integers(0, 3))
    def subscribe(self, index: int) -> None:
        token = self.some(index)
        if token is None or token.status is not TokenStatus.ACTIVE or len(token.queues) > 7:
            return
        queue = self.take_id()
        new = NewSubscription(self.take_id(), token.new.token_id, ADDRESS, queue, b"key")
        assert isinstance(subscriptions.add(self.tx, new), Added)
        token.queues.append(queue)

    @rule(
        target=pending_pushes,
        picks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=12),
    )
    def receive(self, picks: list[tuple[int, int]]) -> MultipleResults[PendingPush]:
        incoming: list[Incoming] = []
        known = 0
        first = self.seq
        for index, number in picks:
            token = self.some(index)
            queue = b"nobody"
            if token is not None and token.queues:
                queue = token.queues[number % len(token.queues)]
                if token.status in KEPT:
                    known += 1
                    if not token.has_pending():
                        token.retry_at = self.now
                    token.stored[queue] = first + len(incoming)
                    token.expires_at = self.now + TTL
            incoming.append(Incoming(queue, os.urandom(24), b"meta", 1.0))
        seq = self.take_seq(len(incoming))
        seqs = range(seq, seq + len(incoming))
        stored = receiving.receive(self.tx, 1, incoming, seqs, self.now, self.now + TTL)
        assert stored.undeliverable == len(incoming) - known
        return multiple(*sorted(stored.pushes, key=lambda push: push.token_id))

    @rule(target=pending_pushes, limit=st.integers(1, 5))
    def take(self, limit: int) -> MultipleResults[PendingPush]:
        due = pending.due(self.tx, "apns_test", self.now, 100)
        page = pending.due(self.tx, "apns_test", self.now, limit)
        assert len(page) == min(limit, len(due))
        assert {push.key for push in page} <= {push.key for push in due}
        # PostgreSQL orders those that are due at the same time as it likes.
        return multiple(*sorted(due, key=lambda push: (push.token_id, push.kind.value))[:limit])

    @rule(push=consumes(pending_pushes))
    def accept(self, push: PendingPush) -> None:
        changed = pending.apply(self.tx, [pending.MarkAccepted(push.token_id, push.kind, push.seq)])
        token = self.tokens.get(push.token_id)
        if token is None:
            assert not changed
        elif push.kind is PushKind.MESSAGE:
            token.accepted = max(token.accepted, push.seq)
        elif token.verification is not None and token.verification <= push.seq:
            token.status = step(token.status, TokenTransition.VERIFICATION_ACCEPTED)
            token.verification = None

    @rule(push=consumes(pending_pushes), delay=st.integers(0, 2_000))
    def postpone(self, push: PendingPush, delay: int) -> None:
        key = push.token_id, push.kind, push.device
        at = self.now + delay
        pending.apply(self.tx, [pending.MarkRetry(*key, push.seq, push.attempts + 1, at)])
        token = self.tokens.get(push.token_id)
        if token is None or push.kind is not PushKind.MESSAGE or token.device != push.device:
            return
        if token.has_pending():
            token.retry_at = at

    @rule(push=consumes(pending_pushes), reason=st.sampled_from(InvalidReason))
    def reject(self, push: PendingPush, reason: InvalidReason) -> None:
        pending.apply(self.tx, [pending.MarkInvalid(push.token_id, push.device, reason)])
        token = self.tokens.get(push.token_id)
        if token is not None and token.device == push.device:
            token.reject(reason)

    @rule(by=st.integers(1, 700))
    def pass_time(self, by: int) -> None:
        self.now += by

    @rule()
    def expire(self) -> None:
        pending.expire(self.tx, self.now)
        for token in self.tokens.values():
            if token.has_pending() and token.expires_at <= self.now:
                token.expired = token.newest
            if token.verification is not None and token.verification_expires_at <= self.now:
                token.verification = None

    @invariant()
    def a_push_is_pending_iff_something_newer_than_what_was_accepted_is_stored(self) -> None:
        [*rows] = self.tx.query("SELECT token_id, seq FROM pending_pushes WHERE kind = 'message'")
        assert dict(rows) == {
            token_id: token.newest for token_id, token in self.tokens.items() if token.has_pending()
        }

    @invariant()
    def it_is_due_iff_active_and_not_expired_nor_postponed(self) -> None:
        due = pending.due(self.tx, "apns_test", self.now, 100)
        messages = {item.token_id: item for item in due if item.kind is PushKind.MESSAGE}
        assert messages.keys() == {
            token_id
            for token_id, token in self.tokens.items()
            if token.has_pending()
            and token.status is TokenStatus.ACTIVE
            and token.retry_at <= self.now < token.expires_at
        }
        for token_id, push in messages.items():
            token = self.tokens[token_id]
            assert push.device == token.device
            assert push.seq == token.newest
            seqs = [notice.seq for notice in push.notices]
            assert seqs == sorted(token.stored.values())[-6:]

    @invariant()
    def statuses_and_verifications_are_those_of_the_machine(self) -> None:
        rows = self.tx.query("SELECT token_id, status FROM tokens")
        assert dict(rows) == {key: token.status.value for key, token in self.tokens.items()}
        pending_codes = self.tx.query(
            "SELECT token_id, seq FROM pending_pushes WHERE kind = 'verification'"
        )
        assert dict(pending_codes) == {
            key: token.verification
            for key, token in self.tokens.items()
            if token.verification is not None
        }


class PendingPushesOnPostgres(PendingPushes):
    kind = "postgresql"
    shared_url = None


TestPendingPushesOnSqlite = PendingPushes.TestCase
TestPendingPushesOnPostgres = PendingPushesOnPostgres.TestCase
# The interesting coincidences are rare, so more examples than usual.
TestPendingPushesOnSqlite.settings = hypothesis_settings(
    TestPendingPushesOnSqlite.settings, max_examples=200
)
TestPendingPushesOnPostgres.settings = hypothesis_settings(
    TestPendingPushesOnPostgres.settings, max_examples=30
)
