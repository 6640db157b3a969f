"""Check whether any stored work is pending: reads the store, without an agent.

Only work that could be done now counts, if its router answers: neither what waits for the other
side, nor what is due later.
"""

from heliograph.agent.connections import queues
from heliograph.agent.keys import Vault
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.steps import next_step
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NotificationSettings, notified_queues
from heliograph.agent.notifications.records import NtfToken, SubAction, TokenAction
from heliograph.agent.notifications.subscription import allowed, is_due
from heliograph.agent.store import AgentStore
from heliograph.db.dialects import Transaction
from heliograph.wire.ntf.tokens import NotificationsMode, TokenStatus


async def has_work(store: AgentStore, settings: NotificationSettings, now: float) -> bool:
    """Return whether work of the token, of subscriptions or of messages is pending."""
    vault = store.vault

    def read(tx: Transaction) -> bool:
        token = ntf_store.load_token(tx, vault)
        return (
            _has_token_work(token, settings, now)
            or _has_deletions(tx, now)
            or _has_subscriptions(tx, vault, token, settings, now)
            or _has_messages(tx, vault)
        )

    return await store.read(read)


def _has_token_work(token: NtfToken | None, settings: NotificationSettings, now: float) -> bool:
    if token is None:
        return False
    if token.action in (TokenAction.REGISTER, TokenAction.VERIFY):
        return True
    if abs(now - token.checked_at) >= settings.check_token_after:  # also if the clock was set back
        return True
    minutes = settings.cron.minutes(token.mode)
    return token.status is TokenStatus.ACTIVE and token.cron_minutes != minutes


def _has_deletions(tx: Transaction, now: float) -> bool:
    due = (ntf_store.next_deletion(tx, at) for at in ntf_store.routers_to_delete_at(tx))
    return any(at is not None and at <= now for at in due)


def _has_subscriptions(
    tx: Transaction,
    vault: Vault,
    token: NtfToken | None,
    settings: NotificationSettings,
    now: float,
) -> bool:
    subs = ntf_store.all_subscriptions(tx)
    actions = allowed(tuple(SubAction), token)
    if any(sub.action in actions and is_due(sub, settings.intervals, now) for sub in subs):
        return True
    if token is None or token.mode is not NotificationsMode.INSTANT:
        return any(sub.action is None or not sub.action.is_delete for sub in subs)
    if not token.is_instant:
        return False
    known = {sub.conn_id for sub in subs}
    wanted = [item.conn_id for item in queues.connections(tx) if item.enable_ntfs]
    missing = [conn_id for conn_id in wanted if conn_id not in known]
    return bool(notified_queues(tx, vault, missing))


def _has_messages(tx: Transaction, vault: Vault) -> bool:
    return any(
        next_step(
            queues.rcv_queues_of(tx, vault, [conn_id]),
            queues.snd_queues_of(tx, vault, conn_id),
            messages.outgoing_of(tx, vault, conn_id),
        )
        is not None
        for conn_id in messages.busy_connections(tx)
    )
