"""The states that an app and its extension tell each other, and the modes that a user chooses."""

from enum import Enum


class AppState(Enum):
    """Of the app, as the extension sees it."""

    ACTIVE = "active"
    ACTIVATING = "activating"
    BACKGROUND_REFRESH = "background refresh"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    STOPPED = "stopped"

    @property
    def is_running(self) -> bool:
        """It has the database, or is about to take it."""
        return self in (AppState.ACTIVE, AppState.ACTIVATING, AppState.BACKGROUND_REFRESH)


class CoreState(Enum):
    """Of the extension's own core, as the app sees it."""

    CREATED = "created"
    STARTING = "starting"
    ACTIVE = "active"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"

    @property
    def has_store(self) -> bool:
        """The database may be open in the extension."""
        return self in (CoreState.STARTING, CoreState.ACTIVE, CoreState.SUSPENDING)


class NotificationsMode(Enum):
    INSTANT = "instant"
    PERIODIC = "periodic"
    OFF = "off"


class PreviewMode(Enum):
    """How much of a message a notification shows."""

    MESSAGE = "message"
    CONTACT = "contact"
    HIDDEN = "hidden"
