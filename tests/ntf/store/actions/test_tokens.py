"""Tokens without an owner: every stage with every input, and any order of inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.ntf.store import owners, pending, receiving, tokens, wakeups
from heliograph.ntf.store.actions.applying import DailyCap, apply_batch, preview_batch, undo
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.owners import DAY
from heliograph.ntf.store.pending import MarkAccepted
from heliograph.ntf.store.records import Incoming, PushKind
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import NewSubscription
from tests.ntf.support import a_new_token

SLOW, VERIFY, REMOVE = ActionKind.SLOW_TOKEN, ActionKind.VERIFY_TOKEN, ActionKind.REMOVE_TOKEN
KINDS = (SLOW, VERIFY, REMOVE)
CAPS = dict.fromkeys(KINDS, DailyCap(0.0, 1000))
ADDRESS = "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@localhost:1"
BORN = 1_000 * DAY
NOW = BORN + 22 * DAY
QUEUES = [bytes([number]) * 24 for number in (1, 2)]
STAGES = ("seen", "unseen", "slowed", "asked", "verified", "removed")
INPUTS = ("slow", "verify", "accepted", "remove", "command", "undo")


@dataclass
class TokenWorld:
    """One token in a store, and what was done with it. `now` is in milliseconds."""

    tx: Transaction
    token_id: bytes = b""
    code: bytes = b""
    now: int = NOW
    applied: list[str] = field(default_factory=list)

    def register(self) -> "TokenWorld":
        new = a_new_token()
        self.token_id, self.code = new.token_id, new.code
        tokens.register(self.tx, new, 1, BORN, BORN + DAY)
        assert tokens.verify(self.tx, new.token_id, new.code)[0] is not None
        self.tx.execute("DELETE FROM pending_pushes", ())
        wakeups.set_cron(self.tx, new.token_id, 20, NOW)
        for queue in QUEUES:
            subscriptions.add(self.tx, NewSubscription(queue, new.token_id, ADDRESS, queue, b"key"))
        return self

    def action(self, kind: ActionKind, since: int = BORN) -> ResolvedAction:
        action_id = f"{kind.value}-{len(self.applied)}"
        return ResolvedAction(action_id, kind, self.token_id, 0, {"unseen_since": since * 1000})

    def act(self, kind: ActionKind) -> Refusal | bool:
        """Apply an action; it is previewed as it is applied."""
        item = self.action(kind)
        [expected] = preview_batch(self.tx, [item], CAPS, self.now)
        [result] = apply_batch(self.tx, [item], CAPS, self.now)
        if isinstance(result, Applied):
            assert isinstance(expected, Applied)
            self.applied.append(item.action_id)
            return True
        assert expected == result
        assert isinstance(result, Refusal)
        return result

    def accept(self) -> None:
        """Have the provider accept the verification push, if there is one."""
        pushes, _ = pending.page(self.tx, pending.FIRST_PAGE, 100)
        for push in pushes:
            if push.key == (self.token_id, PushKind.VERIFICATION):
                accepted = MarkAccepted(self.token_id, push.kind, push.seq)
                assert pending.apply(self.tx, [accepted], now=self.now) == []

    def command(self) -> None:
        """A command of the owner: a removed token is unknown, so nobody is authorized."""
        if tokens.find(self.tx, self.token_id) is not None:
            owners.mark_seen(self.tx, [self.token_id], self.now)

    def undo_last(self) -> Applied | Refusal | None:
        return undo(self.tx, self.applied[-1], self.now) if self.applied else None

    def do(self, step: str) -> Refusal | bool:
        kinds = dict(zip(("slow", "verify", "remove"), KINDS, strict=True))
        if step in kinds:
            return self.act(kinds[step])
        {"accepted": self.accept, "command": self.command, "undo": self.undo_last}[step]()
        return True

    def at(self, stage: str) -> "TokenWorld":
        """Bring the token to a stage, with time enough for the next."""
        path = (("command",), ("slow",), ("verify",), ("accepted",), ("remove",))
        if stage == "seen":
            self.command()
        for done, steps in zip(STAGES[2:], path[1:], strict=True):
            if STAGES.index(stage) >= STAGES.index(done):
                assert self.do(steps[0]) is True
                self.now += 8 * DAY
        return self

    @property
    def stage(self) -> str:
        rows = self.tx.query(
            "SELECT t.seen_at, d.slowed_at, d.asked_at, d.verified_at FROM tokens t"
            " LEFT JOIN slowed_tokens d ON d.token_id = t.token_id"
        )
        if not rows:
            return "removed"
        [(seen_at, *times)] = rows
        if times[0] is None:
            return "seen" if seen_at > BORN else "unseen"
        return ("slowed", "asked", "verified")[sum(at is not None for at in times) - 1]

    @property
    def queues(self) -> int:
        [[count]] = self.tx.query("SELECT COUNT(*) FROM subscriptions")
        return int(count)


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialect]:
    url = f"sqlite:///{tmp_path_factory.mktemp('actions')}/ntf.db"
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


@contextmanager
def a_token(dialect: Dialect) -> Iterator[TokenWorld]:
    dialect.begin()
    try:
        yield TokenWorld(Transaction(dialect)).register()
    finally:
        dialect.rollback()


NEXT = {
    ("unseen", "slow"): "slowed",
    ("unseen", "command"): "seen",
    ("slowed", "verify"): "asked",
    ("slowed", "command"): "seen",
    ("slowed", "undo"): "unseen",
    ("asked", "accepted"): "verified",
    ("asked", "command"): "seen",
    ("asked", "undo"): "slowed",
    ("verified", "remove"): "removed",
    ("verified", "command"): "seen",
    ("verified", "undo"): "slowed",
    ("removed", "undo"): "unseen",
}
"""The stage after an input; every other input changes nothing."""


@pytest.mark.parametrize("given_input", INPUTS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_and_input(dialect: Dialect, stage: str, given_input: str) -> None:
    with a_token(dialect) as token:
        token.at(stage)
        assert token.stage == stage
        after = NEXT.get((stage, given_input), stage)
        result = token.do(given_input)
        assert token.stage == after
        if given_input in ("slow", "verify", "remove"):
            refusal = Refusal.UNKNOWN_SUBJECT if stage == "removed" else Refusal.DISAGREED
            assert result == (True if after != stage else refusal)
        # What is restored has everything that it had.
        assert token.queues == (0 if after == "removed" else len(QUEUES))


@pytest.mark.parametrize(
    ("stage", "kind", "days"),
    [("unseen", SLOW, -16), ("slowed", VERIFY, -8), ("verified", REMOVE, -6)],
)
def test_nothing_happens_before_its_time(
    dialect: Dialect, stage: str, kind: ActionKind, days: int
) -> None:
    with a_token(dialect) as token:
        token.at(stage)
        token.now += days * DAY
        assert token.act(kind) is Refusal.DISAGREED


@pytest.mark.parametrize("evidence", [{}, {"unseen_since": "long ago"}, {"unseen_since": 0}])
def test_evidence_that_the_router_contradicts_is_refused(
    dialect: Dialect, evidence: dict[str, object]
) -> None:
    with a_token(dialect) as token:
        item = token.action(SLOW)._replace(evidence=evidence)
        assert apply_batch(token.tx, [item], CAPS, token.now) == [Refusal.DISAGREED]


def test_a_verification_that_the_provider_did_not_accept_asks_nobody(dialect: Dialect) -> None:
    with a_token(dialect) as token:
        token.at("asked")
        assert len(pending.expire(token.tx, token.now)) == 1
        token.now += 30 * DAY
        assert token.act(REMOVE) is Refusal.DISAGREED


def test_the_pushes_of_a_slowed_token_are_at_most_one_in_an_interval(dialect: Dialect) -> None:
    with a_token(dialect) as token:
        token.at("slowed")
        sent = []
        for hour in range(0, 24 * 10, 5):
            at = token.now + hour * DAY // 24
            nmsg = Incoming(QUEUES[0], bytes([hour]) * 24, b"", at / 1000)
            receiving.receive(token.tx, 1, [nmsg], [hour + 1], at, at + 3 * DAY)
            for push in pending.due_for(token.tx, [token.token_id], at, PushKind.MESSAGE):
                sent.append(at)
                # Another arrives while it is in flight.
                nmsg = Incoming(QUEUES[1], bytes([hour, 1]) * 12, b"", at / 1000)
                receiving.receive(token.tx, 1, [nmsg], [hour + 2], at, at + 3 * DAY)
                accepted = MarkAccepted(token.token_id, push.kind, push.seq)
                pending.apply(token.tx, [accepted], now=at)
            pending.limit_delays(token.tx, at, 600_000)
        pauses = [after - before for before, after in pairwise(sent)]
        assert len(sent) > 5
        assert min(pauses) >= DAY
        # The rest is due once the owner is seen.
        at = sent[-1] + 1
        assert pending.due_for(token.tx, [token.token_id], at) == []
        assert owners.mark_seen(token.tx, [token.token_id], at) == [token.token_id]
        assert len(pending.due_for(token.tx, [token.token_id], at)) == 1


def test_pushes_that_would_expire_before_an_interval_are_not_delayed_so_long(
    dialect: Dialect,
) -> None:
    with a_token(dialect) as token:
        token.at("slowed")
        for number in (1, 2):
            nmsg = Incoming(QUEUES[0], bytes([number]) * 24, b"", token.now / 1000)
            batch = receiving.receive(
                token.tx, 1, [nmsg], [number], token.now, token.now + 3_600_000
            )
            for push in batch.pushes:
                accepted = MarkAccepted(token.token_id, push.kind, push.seq)
                pending.apply(token.tx, [accepted], now=token.now)
        later = token.now + 1_800_000
        assert len(pending.due_for(token.tx, [token.token_id], later, PushKind.MESSAGE)) == 1


def test_periodic_pushes_of_a_slowed_token_are_rarer_and_due_again_once_it_answers(
    dialect: Dialect,
) -> None:
    with a_token(dialect) as token:
        token.at("slowed")
        [due] = wakeups.cron_due(token.tx, token.now, 10)
        assert due.is_slowed
        wakeups.set_cron(token.tx, token.token_id, 20, token.now + DAY)
        wakeups.rebase_cron(token.tx, token.now, b"", 10)
        assert wakeups.cron_due(token.tx, token.now + DAY - 1, 10) == []
        owners.mark_seen(token.tx, [token.token_id], token.now)
        [due] = wakeups.cron_due(token.tx, token.now + 20 * 60_000, 10)
        assert not due.is_slowed


def test_a_removed_token_is_not_restored_beside_another_of_its_device(dialect: Dialect) -> None:
    with a_token(dialect) as token:
        device = tokens.find(token.tx, token.token_id)
        assert device is not None
        token.at("removed")
        tokens.register(token.tx, a_new_token(device.device), 5, token.now, token.now + DAY)
        assert token.undo_last() is Refusal.DISAGREED


STEPS = st.lists(st.tuples(st.sampled_from(INPUTS), st.integers(0, 10)), max_size=25)


@settings(deadline=None)
@given(steps=STEPS)
def test_any_order(dialect: Dialect, steps: list[tuple[str, int]]) -> None:
    with a_token(dialect) as token:
        last_seen, slowed, verified = BORN, None, None
        for step, days in steps:
            token.now += days * DAY
            before = token.stage
            token.do(step)
            if token.stage == before:
                pass
            elif step == "command":
                last_seen = token.now
            elif step == "slow":
                # Never a token whose owner was seen since what the pipeline knows.
                assert last_seen == BORN
                slowed, verified = token.now, None
            elif step == "accepted":
                verified = token.now
            elif step == "remove":
                # Only after both stages, the answer of the provider, and time to answer it.
                assert before == "verified"
                assert slowed is not None
                assert verified is not None
                assert slowed < verified <= token.now - 3 * DAY
                assert last_seen == BORN
        if token.stage == "removed":
            assert isinstance(token.undo_last(), Applied)
        assert token.queues == len(QUEUES)
        if last_seen > BORN:
            assert token.stage == "seen"
