"""The states that an app and its extension publish to each other, and preview modes."""

from enum import Enum


class AppState(Enum):
    """The state that the app publishes to the extension."""

    ACTIVE = "active"
    ACTIVATING = "activating"
    BACKGROUND_REFRESH = "background refresh"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    STOPPED = "stopped"

    @property
    def is_running(self) -> bool:
        """Return whether the app has the database, or is about to open it."""
        return self in (AppState.ACTIVE, AppState.ACTIVATING, AppState.BACKGROUND_REFRESH)


class CoreState(Enum):
    """The state that the extension's core publishes to the app."""

    CREATED = "created"
    STARTING = "starting"
    ACTIVE = "active"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"

    @property
    def has_store(self) -> bool:
        """Return whether the extension may have the database open."""
        return self in (CoreState.STARTING, CoreState.ACTIVE, CoreState.SUSPENDING)


class PreviewMode(Enum):
    """How much of a message a notification shows."""

    MESSAGE = "message"
    CONTACT = "contact"
    HIDDEN = "hidden"


class Presentation(Enum):
    """How the platform shows a notification while the app is active."""

    NOTHING = "nothing"
    LIST = "in the list, with a sound"
    BANNER = "a banner too"
