"""Observation of the notification router: statistics for metrics, and events for the journal.

IDs are passed unhashed; the journal writes only hashes of them. See `heliograph.journal.schema`.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from heliograph.journal.events import (
    EventColumns,
    NmsgDroppedColumns,
    NmsgReceivedColumns,
    NmsgRepeatedColumns,
    NmsgStoredColumns,
    NmsgUnknownColumns,
    OwnerSeen,
    PushPending,
    RouterRecovered,
    RouterStarted,
    SmpDown,
    SmpDrift,
    SmpSubscribed,
    SmpUp,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionStatus,
    TokenActive,
    TokenConfirmed,
    TokenDeleted,
    TokenInvalid,
    TokenPeriodic,
    TokenRegistered,
    TokenReplaced,
    TokenVerificationQueued,
    WakeProgressed,
)
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.journal.observer import RouterObserver
from heliograph.ntf.limits import LimitName
from heliograph.ntf.observing.live import own_host
from heliograph.ntf.observing.pushes import PushObserver, add_count
from heliograph.ntf.observing.stats import Stats, is_real_device
from heliograph.ntf.observing.traffic import ServerName, TrafficCounts
from heliograph.ntf.store.receiving import NmsgOutcome, ReceivedNmsg, StoredBatch
from heliograph.ntf.store.records import PendingPush, QueueDigest, Token
from heliograph.ntf.store.wakes import Wake
from heliograph.wire.ntf import NtfCommand
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus

__all__ = ["NtfObserver"]


_UNKNOWN_SERVER = ServerName("", None)


class NtfObserver(RouterObserver[NtfCommand]):
    """The one place that learns what the router does.

    `last_seq` returns the `seq` of the newest notification.
    """

    def __init__(
        self,
        journal: Journal,
        last_seq: Callable[[], int] = lambda: 0,
        own_domains: tuple[str, ...] = (),
    ) -> None:
        super().__init__(journal)
        self.stats = Stats()
        self.traffic = TrafficCounts()
        self._is_journaling = journal is not NO_JOURNAL
        self._last_seq = last_seq
        self._own_domains = own_domains
        self._servers: dict[int, ServerName] = {}
        self.pushes = PushObserver(journal, self.stats, self._own_host_at)

    # The router.

    def started(self) -> None:
        self.journal.record(RouterStarted(through=self._last_seq()))

    def all_recovered(self, count: int, through: int) -> None:
        """Record that all pushes pending since earlier runs were recorded."""
        self.journal.record(RouterRecovered(count=count, through=through))

    def record_traffic(self, now: float) -> None:
        """Record what messaging routers and providers did since the last call."""
        for event in self.traffic.events(self._servers.get, now):
            self.journal.record(event)

    # Tokens.

    def token_registered(self, token: Token) -> None:
        if is_real_device(token.device):
            self.stats.counters.tkn_created += 1
        event = TokenRegistered(token=token.token_id, provider=token.device.provider.text)
        self.journal.record(event)

    def verification_queued(self, token: Token, pushes: Sequence[PendingPush]) -> None:
        if is_real_device(token.device):
            self.stats.counters.ntf_vrf_queued += 1
        event = TokenVerificationQueued(token=token.token_id, provider=token.device.provider.text)
        self.journal.record(event)
        self.pushes.pending(pushes)

    def token_verified(
        self, token: Token, *, repeated: bool, removed: Iterable[bytes], due: Sequence[PendingPush]
    ) -> None:
        """Record TVFY with the right code; `repeated` if the token was ACTIVE before.

        `removed` are other tokens of the device, `due` the pushes that waited for the code.
        """
        if is_real_device(token.device):
            self.stats.counters.tkn_verified += 1
        self.tokens_removed(removed, "superseded")
        reason = "repeated" if repeated else None
        provider = token.device.provider.text
        self.journal.record(TokenActive(token=token.token_id, provider=provider, reason=reason))
        self.pushes.pending(due)

    def token_replaced(self, token: Token) -> None:
        """Record that a token has another device."""
        if is_real_device(token.device):
            self.stats.counters.tkn_replaced += 1
        event = TokenReplaced(token=token.token_id, provider=token.device.provider.text)
        self.journal.record(event)

    def token_deleted(self, token: Token) -> None:
        if is_real_device(token.device):
            self.stats.counters.tkn_deleted += 1
        provider, through = token.device.provider.text, self._last_seq()
        self.journal.record(TokenDeleted(token=token.token_id, provider=provider, through=through))

    def tokens_removed(self, token_ids: Iterable[bytes], reason: str) -> None:
        """Record tokens that the router removed by itself."""
        through = self._last_seq()
        for token_id in token_ids:
            self.journal.record(TokenDeleted(token=token_id, through=through, reason=reason))

    def unverified_collected(self, token_ids: Collection[bytes]) -> None:
        self.stats.counters.tkn_collected += len(token_ids)
        self.tokens_removed(token_ids, "unverified")

    def quota_exceeded(self, limit: LimitName) -> None:
        """Count a command that was refused because of a limit."""
        exceeded = self.stats.quota_exceeded
        exceeded[limit.value] = exceeded.get(limit.value, 0) + 1

    def token_periodic(self, token: Token, minutes: int) -> None:
        """Record a new interval of periodic pushes, 0 for none."""
        provider = token.device.provider.text
        event = TokenPeriodic(token=token.token_id, provider=provider, interval=minutes)
        self.journal.record(event)

    def owners_seen(self, tokens: Iterable[Token], restored: Collection[bytes]) -> None:
        """Record that owners of tokens were seen; `restored` ones had been slowed."""
        for token in tokens:
            reason = "restored" if token.token_id in restored else None
            provider = token.device.provider.text
            self.journal.record(OwnerSeen(token=token.token_id, provider=provider, reason=reason))

    def tokens_changed(self, changed: Iterable[Token]) -> None:
        """Record the new statuses of tokens that a provider accepted or rejected."""
        for token in changed:
            provider = token.device.provider.text
            if token.status.is_invalid:
                status, through = token.status.value, self._last_seq()
                event = TokenInvalid(
                    token=token.token_id, provider=provider, status=status, through=through
                )
                self.journal.record(event)
            elif token.status is TokenStatus.CONFIRMED:
                self.journal.record(TokenConfirmed(token=token.token_id, provider=provider))

    def wake_progressed(self, wake: Wake) -> None:
        self.journal.record(
            WakeProgressed(
                wake=wake.wake_id.hex(),
                status=wake.state.value,
                count=wake.woken,
                expected_count=wake.total,
            )
        )

    # Subscriptions.

    def subscription_created(self, token_id: bytes, subscription_id: bytes, address: str) -> None:
        """Record a subscription at a messaging router, which another process may subscribe to."""
        self.stats.counters.sub_created += 1
        host = self._own_host_at(address)
        self.journal.record(
            SubscriptionCreated(
                token=token_id,
                subscription=subscription_id,
                own_server=host is not None,
                smp_host=host,
            )
        )

    def subscription_deleted(self, token_id: bytes, subscription_id: bytes) -> None:
        self.stats.counters.sub_deleted += 1
        through = self._last_seq()
        self.journal.record(
            SubscriptionDeleted(token=token_id, subscription=subscription_id, through=through)
        )

    def subscription_statuses(
        self, server: int, statuses: Iterable[tuple[bytes, SubscriptionState]]
    ) -> None:
        """Record the states of new subscriptions, and of those that are not active."""
        host = self.own_host(server)
        for subscription_id, state in statuses:
            self.journal.record(
                SubscriptionStatus(
                    subscription=subscription_id,
                    status=state.value,
                    own_server=host is not None,
                    smp_host=host,
                )
            )

    # Messaging routers.

    def server_added(self, server: int, address: str) -> None:
        """Learn the address that `server` stands for from now on."""
        self._servers[server] = ServerName(address, self._own_host_at(address))

    def server_removed(self, server: int) -> None:
        """Forget a messaging router that has no subscriptions any more."""
        self._servers.pop(server, None)

    def own_host(self, server: int) -> str | None:
        """Return the host of a messaging router of the operator's own, None for others."""
        return self._servers.get(server, _UNKNOWN_SERVER).host

    def server_label(self, server: int) -> str:
        """Return the name of a server for logs: the host of an own one, else its keyed hash."""
        address, host = self._servers.get(server, _UNKNOWN_SERVER)
        return host or self.journal.hash_of("server", address.encode()) or "other"

    def worthless_events(self, server: int, count: int) -> None:
        """Count events of a messaging router that concern no subscription."""
        add_count(self.stats.worthless_events, self.own_host(server) or "other", count)

    def smp_connected(self, server: int) -> None:
        address, host = self._servers.get(server, _UNKNOWN_SERVER)
        own = host is not None
        self.journal.record(SmpUp(server=address.encode(), own_server=own, smp_host=host))

    def smp_disconnected(self, server: int) -> None:
        address, host = self._servers.get(server, _UNKNOWN_SERVER)
        own = host is not None
        self.journal.record(SmpDown(server=address.encode(), own_server=own, smp_host=host))

    def smp_subscribed(self, server: int, found: QueueDigest, expected: QueueDigest) -> None:
        """Record what a messaging router confirmed after connecting, and what was requested."""
        address, host = self._servers.get(server, _UNKNOWN_SERVER)
        self.journal.record(
            SmpSubscribed(
                server=address.encode(),
                own_server=host is not None,
                smp_host=host,
                count=found.count,
                hash=found.ids_hash,
                expected_count=expected.count,
                expected_hash=expected.ids_hash,
                reason=None if found.ids_hash is None else "service",
            )
        )

    def drift_repaired(
        self, server: int, found: QueueDigest | None, expected: QueueDigest | None
    ) -> None:
        """Record that a messaging router's digest (None if it gave none) differed from ours."""
        self.stats.counters.drift_repaired += 1
        address, host = self._servers.get(server, _UNKNOWN_SERVER)
        self.journal.record(
            SmpDrift(
                server=address.encode(),
                own_server=host is not None,
                smp_host=host,
                count=None if found is None else found.count,
                hash=None if found is None else found.ids_hash,
                expected_count=None if expected is None else expected.count,
                expected_hash=None if expected is None else expected.ids_hash,
            )
        )

    # Notifications.

    def notifications_stored(self, server: int, stored: StoredBatch) -> None:
        """Record the outcome of each NMSG of a batch, and the pushes that are pending for it."""
        if not stored.received:
            return
        host = self.own_host(server)
        self._count_received(stored, host, time.time())
        self.traffic.received(server, len(stored.received))
        if not self._is_journaling:
            return
        own = host is not None
        nonces, at, _, outcomes, *_ = zip(*stored.received, strict=True)
        self.journal.record_columns(
            NmsgReceivedColumns(at=at, notification=nonces, own_server=own, smp_host=host)
        )
        for outcome in {*outcomes}:
            some = [item for item in stored.received if item.outcome is outcome]
            self.journal.record_columns(_nmsg_columns(outcome, some, host))
        self.pushes.pending(stored.pushes)
        due = {push.token_id for push in stored.pushes}
        providers = {item.token_id: item.provider for item in stored.received}
        for token_id, seq in stored.newest.items():
            if token_id not in due:
                provider = providers[token_id] or ""
                event = PushPending(token=token_id, provider=provider, mode="message", through=seq)
                self.journal.record(event)

    def _count_received(self, stored: StoredBatch, host: str | None, now: float) -> None:
        counters = self.stats.counters
        known = len(stored.received) - stored.undeliverable
        counters.ntf_received += known
        counters.ntf_received_auth += stored.undeliverable
        if host is not None:
            add_count(counters.received_own, host, known)
            if stored.undeliverable:
                add_count(counters.received_auth_own, host, stored.undeliverable)
        active = {item.subscription_id for item in stored.received}
        self.stats.active_subs.add({item for item in active if item is not None}, now)
        self.stats.active_tokens.add({*stored.newest}, now)

    def _own_host_at(self, address: str) -> str | None:
        return own_host(address, self._own_domains)


def _nmsg_columns(
    outcome: NmsgOutcome, some: Sequence[ReceivedNmsg], host: str | None
) -> EventColumns:
    """Return the events of NMSG with the same outcome; `host` is that of an own server."""
    own = host is not None
    nonces, _, seqs, _, tokens, subscriptions, providers, statuses = zip(*some, strict=True)
    match outcome:
        case NmsgOutcome.UNKNOWN:
            return NmsgUnknownColumns(
                notification=nonces, subscription=subscriptions, own_server=own, smp_host=host
            )
        case NmsgOutcome.STORED:
            return NmsgStoredColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                ntf_seq=seqs,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
        case NmsgOutcome.REPEATED:
            return NmsgRepeatedColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
        case NmsgOutcome.DROPPED:
            return NmsgDroppedColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                status=statuses,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
