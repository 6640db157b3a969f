"""Events about tokens and subscriptions of the notification router."""

from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import JournalEvent, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token(JournalEvent):
    token: bytes
    provider: str


@event(Part.NTF)
class TokenRegistered(_Token):
    """A new token."""


@event(Part.NTF)
class TokenVerificationQueued(_Token):
    """A push with the verification code is pending: the first, or a repeated one."""


@event(Part.NTF)
class TokenConfirmed(_Token):
    """The provider accepted the push with the verification code."""


@event(Part.NTF)
class TokenActive(_Token):
    """The client sent the code. With the reason `repeated`: the token was active already."""

    reason: str | None = None


@event(Part.NTF)
class TokenReplaced(_Token):
    """Another device token took its place."""


@event(Part.NTF)
class TokenDeleted(JournalEvent):
    """Deleted by its client, because another registration of the device was verified (the reason
    is `superseded`), because it was never verified (`unverified`), or by an action because its
    owner is gone (`dead`). Settles all of its notifications up to `through`: they are not pushed.
    """

    token: bytes
    through: int
    provider: str | None = None
    reason: str | None = None


@event(Part.NTF)
class TokenInvalid(_Token):
    """The provider rejected the token. Settles all of its notifications up to `through`."""

    through: int
    status: str | None = None
    reason: str | None = None


@event(Part.NTF)
class TokenPeriodic(_Token):
    """The client started or stopped periodic pushes."""

    interval: int


@event(Part.NTF)
class OwnerSeen(_Token):
    """A command of the token's owner; recorded at most once a day for each token. With the reason
    `restored`: the token was slowed, because its owner had not been seen for weeks.
    """

    reason: str | None = None


@event(Part.NTF)
class SubscriptionCreated(JournalEvent):
    """A token subscribed to the notifications of a queue."""

    token: bytes
    subscription: bytes
    own_server: bool
    smp_host: str | None = None
    provider: str | None = None


@event(Part.NTF)
class SubscriptionStatus(JournalEvent):
    """The messaging router's answer to a new subscription, or the status of one that is not
    active. `smp_subscribed` reports that all subscriptions of a connection are active again.
    """

    subscription: bytes
    status: str
    own_server: bool
    smp_host: str | None = None


@event(Part.NTF)
class SubscriptionDeleted(JournalEvent):
    """Deleted by its client. Settles its notifications up to `through`: they are not pushed."""

    token: bytes
    subscription: bytes
    through: int
