"""The tables of notifications: the token, tokens to delete, subscriptions. Times in milliseconds.

Columns that hold keys, secrets and device tokens are sealed when the store has a passphrase.
"""

from heliograph.db.database import Migration

NTF_MIGRATIONS = (
    Migration(
        "ntf_0001_notifications",
        """
        CREATE TABLE ntf_token (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            device {blob} NOT NULL,
            ntf_address TEXT NOT NULL,
            auth_public {blob} NOT NULL,
            auth_private {blob} NOT NULL,
            dh_public {blob} NOT NULL,
            dh_private {blob} NOT NULL,
            mode TEXT NOT NULL,
            token_id {blob},
            dh_secret {blob},
            status TEXT NOT NULL,
            action TEXT,
            code {blob},
            cron_minutes INTEGER NOT NULL
        );
        CREATE TABLE ntf_last_device (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            device {blob} NOT NULL,
            ntf_address TEXT NOT NULL
        );
        CREATE TABLE ntf_tokens_to_delete (
            token_id {blob} PRIMARY KEY,
            ntf_address TEXT NOT NULL,
            auth_private {blob} NOT NULL,
            due BIGINT NOT NULL,
            attempts INTEGER NOT NULL,
            created_at BIGINT NOT NULL
        );
        CREATE TABLE ntf_subscriptions (
            conn_id TEXT PRIMARY KEY,
            smp_address TEXT NOT NULL,
            ntf_address TEXT NOT NULL,
            notifier_id {blob},
            token_id {blob},
            subscription_id {blob},
            stage TEXT NOT NULL,
            state TEXT,
            action TEXT,
            due BIGINT NOT NULL,
            attempts INTEGER NOT NULL,
            revision BIGINT NOT NULL
        );
        CREATE INDEX ntf_subscriptions_by_smp ON ntf_subscriptions (smp_address, action, due);
        CREATE INDEX ntf_subscriptions_by_ntf ON ntf_subscriptions (ntf_address, action, due)
        """,
    ),
)
