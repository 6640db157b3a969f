"""The events of the journal: one frozen dataclass for each kind. The schema is generated from them.

A field without a default is a column that every event of the kind has. IDs are given as bytes; the
journal writes hashes of them. `...Columns` classes are many events of one kind at once, column by
column, which costs a router much less than one object for each.
"""

from heliograph.journal.events.actions import (
    ActionApplied as ActionApplied,
    ActionExpired as ActionExpired,
    ActionRefused as ActionRefused,
    ActionUndone as ActionUndone,
    WakeProgressed as WakeProgressed,
)
from heliograph.journal.events.base import (
    COLUMNAR as COLUMNAR,
    EVENTS as EVENTS,
    EventColumns as EventColumns,
    JournalEvent as JournalEvent,
    is_column as is_column,
)
from heliograph.journal.events.nmsg import (
    NmsgDropped as NmsgDropped,
    NmsgDroppedColumns as NmsgDroppedColumns,
    NmsgReceived as NmsgReceived,
    NmsgReceivedColumns as NmsgReceivedColumns,
    NmsgRepeated as NmsgRepeated,
    NmsgRepeatedColumns as NmsgRepeatedColumns,
    NmsgStored as NmsgStored,
    NmsgStoredColumns as NmsgStoredColumns,
    NmsgUnknown as NmsgUnknown,
    NmsgUnknownColumns as NmsgUnknownColumns,
)
from heliograph.journal.events.notifications import (
    AgentDecrypted as AgentDecrypted,
    DeviceShown as DeviceShown,
    NotificationDelivered as NotificationDelivered,
    NotificationDeliveredColumns as NotificationDeliveredColumns,
    NotificationExpired as NotificationExpired,
    NotificationRemoved as NotificationRemoved,
    NotificationStored as NotificationStored,
    NotificationStoredColumns as NotificationStoredColumns,
)
from heliograph.journal.events.pushes import (
    PushAccepted as PushAccepted,
    PushAcceptedColumns as PushAcceptedColumns,
    PushAttempted as PushAttempted,
    PushesTimed as PushesTimed,
    PushExpired as PushExpired,
    PushPending as PushPending,
    PushPendingColumns as PushPendingColumns,
    PushRejected as PushRejected,
    PushRetried as PushRetried,
)
from heliograph.journal.events.routers import (
    ClientConnected as ClientConnected,
    CommandsCounted as CommandsCounted,
    JournalLost as JournalLost,
    RegistrationsCounted as RegistrationsCounted,
    RouterRecovered as RouterRecovered,
    RouterStarted as RouterStarted,
    RouterStopped as RouterStopped,
)
from heliograph.journal.events.servers import (
    SmpCounted as SmpCounted,
    SmpDown as SmpDown,
    SmpDrift as SmpDrift,
    SmpSubscribed as SmpSubscribed,
    SmpUp as SmpUp,
)
from heliograph.journal.events.tokens import (
    OwnerSeen as OwnerSeen,
    SubscriptionCreated as SubscriptionCreated,
    SubscriptionDeleted as SubscriptionDeleted,
    SubscriptionStatus as SubscriptionStatus,
    TokenActive as TokenActive,
    TokenConfirmed as TokenConfirmed,
    TokenDeleted as TokenDeleted,
    TokenInvalid as TokenInvalid,
    TokenPeriodic as TokenPeriodic,
    TokenRegistered as TokenRegistered,
    TokenReplaced as TokenReplaced,
    TokenVerificationQueued as TokenVerificationQueued,
)
