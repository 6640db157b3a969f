"""NtfManager: categories and their actions, permission, local notifications, and responses.

    INACTIVE ──response──> INACTIVE (kept) ──active──> ACTIVE, and it is processed
    ACTIVE ──response──> switch user, then open the chat, accept the contact, or take the call

An action on something that is not loaded yet stays pending until it is.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from heliograph.device.chats.content import Category, Content
from heliograph.device.chats.model import ChatId, Loaded, UserId
from heliograph.device.chats.rate_limit import ChatRateLimit
from heliograph.device.states import Presentation

OPEN_ACTION = "com.apple.UNNotificationDefaultActionIdentifier"
DISMISS_ACTION = "com.apple.UNNotificationDismissActionIdentifier"


class NotificationAction(Enum):
    ACCEPT_CONTACT = "NTF_ACT_ACCEPT_CONTACT"
    ACCEPT_CALL = "NTF_ACT_ACCEPT_CALL"
    REJECT_CALL = "NTF_ACT_REJECT_CALL"


@dataclass(frozen=True, slots=True)
class Button:
    action: NotificationAction
    title: str
    foreground: bool
    """Whether the action opens the app."""


@dataclass(frozen=True, slots=True)
class RegisteredCategory:
    category: Category
    hidden_text: str
    """The text that the platform shows where it hides previews."""
    buttons: tuple[Button, ...] = ()


CATEGORIES = (
    RegisteredCategory(
        Category.CONTACT_REQUEST,
        "New contact request",
        (Button(NotificationAction.ACCEPT_CONTACT, "Accept", True),),
    ),
    RegisteredCategory(Category.CONTACT_CONNECTED, "Contact is connected"),
    RegisteredCategory(Category.MESSAGE_RECEIVED, "New message"),
    RegisteredCategory(
        Category.CALL_INVITATION,
        "Incoming call",
        (
            Button(NotificationAction.ACCEPT_CALL, "Accept", True),
            Button(NotificationAction.REJECT_CALL, "Reject", False),
        ),
    ),
    RegisteredCategory(Category.CONNECTION_EVENT, "SimpleX encrypted message or connection event"),
    RegisteredCategory(Category.MANY_EVENTS, "New events"),
)


# Permission and local notifications.


class Permission(Enum):
    UNKNOWN = "not asked yet"
    GRANTED = "granted"
    DENIED = "denied"


class PermissionAnswer(Enum):
    """The platform's answer; it asks the user only once."""

    GRANTED = "granted"
    DENIED = "denied"


def ask(permission: Permission, answer: PermissionAnswer) -> Permission:
    """Return the permission after an answer. The newest counts, as users may change it anytime."""
    match answer:
        case PermissionAnswer.GRANTED:
            return Permission.GRANTED
        case PermissionAnswer.DENIED:
            return Permission.DENIED


@dataclass(frozen=True, slots=True)
class LocalNotifier:
    """Decides whether a notification made by the app itself is shown."""

    permission: Permission = Permission.UNKNOWN
    limit: ChatRateLimit = field(default_factory=ChatRateLimit)

    def notify(self, content: Content, now: float) -> tuple["LocalNotifier", bool]:
        """Decide whether to show it: by chat, at most one a second; calls always."""
        if self.permission is not Permission.GRANTED or not content.is_shown:
            return self, False
        if not content.thread or content.category is Category.CALL_INVITATION:
            return self, True
        limit, shown = self.limit.ask(content.thread, now)
        return replace(self, limit=limit), shown


def present(
    content: Content, *, is_active: bool, open_chat: ChatId | None, user: UserId | None
) -> Presentation:
    """Decide how to show a notification that is delivered while the app runs."""
    if not content.is_shown or content.category is Category.CHECK_MESSAGE:
        return Presentation.NOTHING  # a push of the notification router: the running app knows more
    if not is_active:
        return Presentation.BANNER
    match content.category:
        case Category.CALL_INVITATION:
            return Presentation.NOTHING  # the app shows the call itself
        case Category.MESSAGE_RECEIVED:
            own = content.info.get("userId") == user
            if own and open_chat in (None, content.target):
                return Presentation.LIST  # it can be seen already
    return Presentation.BANNER


# Responses.


@dataclass(frozen=True, slots=True)
class Response:
    """A tap on a notification: the value of a `NotificationAction`, open or dismiss."""

    content: Content
    action: str = OPEN_ACTION


class CallAction(Enum):
    ACCEPT = "accept"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Responded:
    response: Response


class AppActivity(Enum):
    ACTIVE = "the app became active"
    INACTIVE = "the app became inactive"


Input = Responded | AppActivity | Loaded


@dataclass(frozen=True, slots=True)
class SwitchUser:
    user: UserId


@dataclass(frozen=True, slots=True)
class OpenChat:
    chat: ChatId


@dataclass(frozen=True, slots=True)
class OpenApp:
    """Open the app without a chat: for several events, or an event without a chat."""


@dataclass(frozen=True, slots=True)
class AcceptContact:
    """Accept the request, never incognito, and open the chat of the new contact."""

    chat: ChatId


@dataclass(frozen=True, slots=True)
class TakeCall:
    chat: ChatId
    action: CallAction


Effect = SwitchUser | OpenChat | OpenApp | AcceptContact | TakeCall


@dataclass(frozen=True, slots=True)
class Responses:
    user: UserId | None = None
    is_active: bool = False
    kept: Response | None = None
    """The newest response, while the app is inactive."""
    request: ChatId | None = None
    """A contact request to accept as soon as it is loaded."""
    call: tuple[ChatId, CallAction] | None = None
    """A call action for the call controller, as soon as the invitation is loaded."""
    requests: frozenset[ChatId] = frozenset()
    calls: frozenset[ChatId] = frozenset()


def respond(state: Responses, happened: Input) -> tuple[Responses, tuple[Effect, ...]]:
    match happened:
        case Responded(response):
            if response.action == DISMISS_ACTION:
                return state, ()
            return _process(state, response) if state.is_active else _keep(state, response)
        case AppActivity.ACTIVE:
            state = replace(state, is_active=True)
            if state.kept is None:
                return state, ()
            return _process(replace(state, kept=None), state.kept)
        case AppActivity.INACTIVE:
            return replace(state, is_active=False), ()
        case Loaded():
            return _loaded(state, happened)
        case _:
            assert_never(happened)


def _keep(state: Responses, response: Response) -> tuple[Responses, tuple[Effect, ...]]:
    return replace(state, kept=response), ()


def _process(state: Responses, response: Response) -> tuple[Responses, tuple[Effect, ...]]:
    effects: list[Effect] = []
    content = response.content
    user = content.info.get("userId")
    if isinstance(user, int) and user != state.user:
        effects.append(SwitchUser(user))
        state = replace(state, user=user)
    chat = content.info.get("chatId")
    match content.category, response.action:
        case Category.CONTACT_REQUEST, NotificationAction.ACCEPT_CONTACT.value if isinstance(
            chat, str
        ):
            if chat not in state.requests:
                return replace(state, request=chat), tuple(effects)
            effects.append(AcceptContact(chat))
            state = replace(state, requests=state.requests - {chat})
        case Category.CALL_INVITATION, (
            NotificationAction.ACCEPT_CALL.value | NotificationAction.REJECT_CALL.value
        ) if isinstance(chat, str):
            accept = response.action == NotificationAction.ACCEPT_CALL.value
            action = CallAction.ACCEPT if accept else CallAction.REJECT
            if chat not in state.calls:
                return replace(state, call=(chat, action)), tuple(effects)
            effects.append(TakeCall(chat, action))
            state = replace(state, calls=state.calls - {chat})
        case _ if content.target is not None:
            effects.append(OpenChat(content.target))
        case _:
            effects.append(OpenApp())
    return state, tuple(effects)


def _loaded(state: Responses, loaded: Loaded) -> tuple[Responses, tuple[Effect, ...]]:
    """Carry out pending actions on what was loaded, if the app is active."""
    requests = state.requests | frozenset(loaded.requests)
    calls = state.calls | frozenset(loaded.calls)
    state = replace(state, requests=requests, calls=calls)
    effects: list[Effect] = []
    if state.is_active and state.request in requests and state.request is not None:
        effects.append(AcceptContact(state.request))
        state = replace(state, request=None, requests=requests - {state.request})
    if state.is_active and state.call is not None and state.call[0] in calls:
        effects.append(TakeCall(*state.call))
        state = replace(state, call=None, calls=calls - {state.call[0]})
    return state, tuple(effects)
