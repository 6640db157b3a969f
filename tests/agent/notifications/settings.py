"""Settings of notifications for tests: soon, and often."""

from heliograph.agent.notifications.context import NotificationSettings
from heliograph.agent.notifications.subscription import Intervals
from heliograph.runtime.backoff import Backoff

FAST = Backoff(first=0.05, last=0.4)
INTERVALS = Intervals(later=Backoff(first=0.1, last=0.4))
SETTINGS = NotificationSettings(retry=FAST, intervals=INTERVALS, suspect_after=0.1)
