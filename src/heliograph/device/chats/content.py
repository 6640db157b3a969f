"""Builds notifications: one builder for each kind of event, in each preview mode.

mode      title          body
message   contact name   message text, secrets hidden
contact   contact name   New message
hidden    SimpleX        New message
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from heliograph.device.chats.model import (
    CallAnswered,
    CallInvitation,
    CallInvited,
    CallMedia,
    ChatEvent,
    ChatGroup,
    ChatId,
    ConnectionEntity,
    ConnectionEvent,
    ConnectionPurpose,
    Contact,
    ContactConnected,
    ContactRequest,
    ContactRequested,
    MessageReceived,
    User,
)
from heliograph.device.chats.text import hide_secrets
from heliograph.device.states import PreviewMode

APP_NAME = "SimpleX"
NEW_MESSAGE = "New message"


class Category(Enum):
    CONTACT_REQUEST = "NTF_CAT_CONTACT_REQUEST"
    CONTACT_CONNECTED = "NTF_CAT_CONTACT_CONNECTED"
    MESSAGE_RECEIVED = "NTF_CAT_MESSAGE_RECEIVED"
    CALL_INVITATION = "NTF_CAT_CALL_INVITATION"
    CONNECTION_EVENT = "NTF_CAT_CONNECTION_EVENT"
    MANY_EVENTS = "NTF_CAT_MANY_EVENTS"
    CHECK_MESSAGE = "NTF_CAT_CHECK_MESSAGE"


class DatabaseProblem(Enum):
    """Why the extension could not open the database."""

    WRONG_PASSPHRASE = "Encrypted database: the passphrase is missing or wrong"  # noqa: S105
    NEWER_VERSION = "Database error: made by a newer version, upgrade the app"
    KEYCHAIN = "Cannot read the passphrase from the keychain"
    DAMAGED = "Database error: open the app to see what can be done"


@dataclass(frozen=True, slots=True)
class Content:
    """A notification as a platform shows it; with neither title nor body it is not shown."""

    category: Category
    title: str
    body: str = ""
    subtitle: str = ""
    thread: ChatId = ""
    """Notifications with the same thread are grouped."""
    target: ChatId | None = None
    """The chat that a tap opens."""
    info: Mapping[str, str | int] = field(default_factory=dict)
    badge: int | None = None
    sound: bool = True

    @property
    def is_shown(self) -> bool:
        return bool(self.title or self.body)


MUTED = Content(Category.CHECK_MESSAGE, "", sound=False)
"""Shows nothing: for users and chats that are muted."""


def create_contact_request(
    user: User, request: ContactRequest, mode: PreviewMode, badge: int | None = None
) -> Content:
    hidden = mode is PreviewMode.HIDDEN
    return create_notification(
        Category.CONTACT_REQUEST,
        f"{'Somebody' if hidden else request.name} wants to connect!",
        f"Accept contact request from {'this contact' if hidden else request.name}?",
        user=user,
        info={"chatId": request.chat_id, "contactRequestId": request.request_id},
        badge=badge,
    )


def create_contact_connected(
    user: User, contact: Contact, mode: PreviewMode, badge: int | None = None
) -> Content:
    hidden = mode is PreviewMode.HIDDEN
    return create_notification(
        Category.CONTACT_CONNECTED,
        f"{'A new contact' if hidden else contact.name} is connected!",
        f"You can now send messages to {'this contact' if hidden else contact.name}",
        target=contact.chat_id,
        user=user,
        badge=badge,
    )


def create_message_received(
    event: MessageReceived, mode: PreviewMode, badge: int | None = None
) -> Content:
    chat, item = event.chat, event.item
    match mode:
        case PreviewMode.MESSAGE:
            title, body = _chat_title(chat, item.member), hide_secrets(item)
        case PreviewMode.CONTACT:
            title, body = _chat_title(chat, item.member), NEW_MESSAGE
        case PreviewMode.HIDDEN:
            title, body = APP_NAME, NEW_MESSAGE
        case _:
            assert_never(mode)
    return create_notification(
        Category.MESSAGE_RECEIVED, title, body, target=chat.chat_id, user=event.user, badge=badge
    )


def create_call_invitation(
    invitation: CallInvitation, mode: PreviewMode, badge: int | None = None
) -> Content:
    contact = invitation.contact
    kind = "video" if invitation.media is CallMedia.VIDEO else "audio"
    return create_notification(
        Category.CALL_INVITATION,
        APP_NAME if mode is PreviewMode.HIDDEN else contact.name,
        f"Incoming {kind} call",
        user=invitation.user,
        info={"chatId": contact.chat_id},
        thread=contact.chat_id,
        badge=badge,
    )


def create_call_answered(
    event: CallAnswered, mode: PreviewMode, badge: int | None = None
) -> Content:
    return create_notification(
        Category.CONNECTION_EVENT,
        APP_NAME if mode is PreviewMode.HIDDEN else event.contact.name,
        "Call accepted" if event.accepted else "Call declined",
        target=event.contact.chat_id,
        user=event.user,
        badge=badge,
    )


def create_connection_event(
    user: User, entity: ConnectionEntity, mode: PreviewMode, badge: int | None = None
) -> Content:
    hidden = mode is PreviewMode.HIDDEN
    target = None
    body = ""
    match entity.purpose:
        case ConnectionPurpose.DIRECT:
            contact, body = entity.contact, "Message received"
            title = "New contact"
            if contact is not None:
                title, target = APP_NAME if hidden else contact.name, contact.chat_id
        case ConnectionPurpose.GROUP:
            group, body = entity.group, "Message received"
            title = "Group message"
            if group is not None:
                title = title if hidden else _chat_title(group, entity.member)
                target = group.chat_id
        case ConnectionPurpose.SENT_FILE:
            title = "Sent file event"
        case ConnectionPurpose.RECEIVED_FILE:
            title = "Received file event"
        case ConnectionPurpose.CONTACT_ADDRESS:
            title = "New contact request"
        case _:
            assert_never(entity.purpose)
    return create_notification(
        Category.CONNECTION_EVENT, title, body, target=target, user=user, badge=badge
    )


def create_error(problem: DatabaseProblem, badge: int | None = None) -> Content:
    """Build the notification of an error that only the app can solve; it contains no names."""
    return create_notification(Category.CONNECTION_EVENT, problem.value, badge=badge)


def create_app_stopped(badge: int | None = None) -> Content:
    return create_notification(
        Category.CONNECTION_EVENT,
        "Encrypted message: app is stopped",
        "Start the app to receive messages",
        badge=badge,
    )


def create_many_events(
    events: Sequence[ChatEvent], mode: PreviewMode, badge: int | None = None
) -> Content:
    """Build one notification for several connections, as a push may be about six."""
    messages = [event for event in events if isinstance(event, MessageReceived)]
    names = list({event.chat.chat_id: event.chat.name for event in messages}.values())
    if not names:
        body = f"{len(events)} new events"
        return create_notification(Category.MANY_EVENTS, "New events", body, badge=badge)
    hidden = mode is PreviewMode.HIDDEN
    body = f"From {len(names)} chat(s)" if hidden else f"From: {_join(names)}"
    return create_notification(
        Category.MANY_EVENTS, "New messages", body, user=messages[0].user, badge=badge
    )


def create_notification(
    category: Category,
    title: str,
    body: str = "",
    *,
    subtitle: str = "",
    target: ChatId | None = None,
    thread: ChatId = "",
    user: User | None = None,
    info: Mapping[str, str | int] | None = None,
    badge: int | None = None,
) -> Content:
    """Build a notification: its thread is the chat, and it identifies the user for a tap."""
    known: dict[str, str | int] = dict(info or {})
    if user is not None:
        known["userId"] = user.user_id
    return Content(
        category,
        title,
        body,
        subtitle=subtitle,
        thread=thread or target or "",
        target=target,
        info=known,
        badge=badge,
    )


def build(event: ChatEvent, mode: PreviewMode, badge: int | None = None) -> Content:
    match event:
        case ConnectionEvent():
            return create_connection_event(event.user, event.entity, mode, badge)
        case ContactConnected():
            return create_contact_connected(event.user, event.contact, mode, badge)
        case ContactRequested():
            return create_contact_request(event.user, event.request, mode, badge)
        case MessageReceived():
            return create_message_received(event, mode, badge)
        case CallInvited():
            return create_call_invitation(event.invitation, mode, badge)
        case CallAnswered():
            return create_call_answered(event, mode, badge)
        case _:
            assert_never(event)


def build_all(events: Sequence[ChatEvent], mode: PreviewMode, badge: int | None = None) -> Content:
    """Build one notification for all events: calls first, then messages, then others."""
    call = next((event for event in events if isinstance(event, CallInvited)), None)
    if call is not None:
        return build(call, mode, badge)
    messages = [event for event in events if isinstance(event, MessageReceived)]
    chosen = messages or events
    match len(chosen):
        case 0:
            return MUTED
        case 1:
            return build(chosen[0], mode, badge)
        case _:
            return create_many_events(chosen, mode, badge)


def _chat_title(chat: Contact | ChatGroup, member: str) -> str:
    if isinstance(chat, ChatGroup):
        return f"#{chat.name} {member}" if member else f"#{chat.name}"
    return chat.name


def _join(names: Sequence[str]) -> str:
    match len(names):
        case 1:
            return names[0]
        case 2:
            return f"{names[0]} and {names[1]}"
        case 3:
            return f"{names[0]}, {names[1]} and {names[2]}"
        case count:
            return f"{names[0]}, {names[1]} and {count - 2} other chats"
