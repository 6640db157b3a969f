"""The tables of a phone: its settings and chats. Times in Unix seconds, as routers give them.

The content of messages, `items.content`, is encrypted when the phone has a passphrase.
"""

from heliograph.db.database import Migration

MIGRATIONS = (
    Migration(
        "0001_device",
        """
        CREATE TABLE settings (
            name TEXT PRIMARY KEY,
            value TEXT NOT NULL
        );
        CREATE TABLE users (
            user_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            show_notifications INTEGER NOT NULL,
            is_active INTEGER NOT NULL,
            view_password TEXT
        );
        CREATE TABLE contacts (
            contact_id INTEGER PRIMARY KEY,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            conn_id TEXT NOT NULL UNIQUE,
            name TEXT,
            stage TEXT NOT NULL,
            notifications INTEGER NOT NULL
        );
        CREATE TABLE groups (
            group_id INTEGER PRIMARY KEY,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            name TEXT NOT NULL,
            notifications INTEGER NOT NULL,
            UNIQUE (user_id, name)
        );
        CREATE TABLE items (
            item_id INTEGER PRIMARY KEY,
            conn_id TEXT NOT NULL,
            msg_id {blob} NOT NULL,
            received_at BIGINT NOT NULL,
            user_id INTEGER NOT NULL,
            chat_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            group_id INTEGER,
            content {blob} NOT NULL,
            is_read INTEGER NOT NULL,
            is_shown INTEGER NOT NULL,
            UNIQUE (conn_id, msg_id)
        );
        CREATE INDEX items_unread ON items (user_id, chat_id) WHERE is_read = 0;
        CREATE TABLE pushes (
            push_id TEXT PRIMARY KEY,
            at BIGINT NOT NULL
        )
        """,
    ),
)
