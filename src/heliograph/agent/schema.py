"""The tables of connections, queues, messages and notifications.

Times are in milliseconds, except those that a router stamped. Columns that hold keys, secrets,
bodies and device tokens are encrypted if the store has a passphrase.
"""

from heliograph.db.database import Migration

MIGRATIONS = (
    Migration(
        "0001_agent",
        """
        CREATE TABLE vault (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            salt {blob},
            operations BIGINT,
            memory BIGINT,
            wrapped_key {blob}
        );
        CREATE TABLE servers (
            server_id {identity},
            scheme TEXT NOT NULL,
            fingerprint {blob} NOT NULL,
            address TEXT NOT NULL,
            UNIQUE (scheme, fingerprint)
        );
        CREATE TABLE connections (
            conn_id TEXT PRIMARY KEY,
            status TEXT NOT NULL,
            enable_ntfs INTEGER NOT NULL,
            next_number BIGINT NOT NULL,
            created_at BIGINT NOT NULL
        );
        CREATE TABLE rcv_queues (
            queue_id {identity},
            conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
            server_id BIGINT NOT NULL REFERENCES servers,
            rcv_id {blob} NOT NULL,
            snd_id {blob} NOT NULL,
            status TEXT NOT NULL,
            recipient_key {blob} NOT NULL,
            dh_secret {blob} NOT NULL,
            e2e_key {blob} NOT NULL,
            e2e_secret {blob},
            sender_key {blob},
            sender_can_secure INTEGER NOT NULL,
            replaces BIGINT,
            last_broker_ts BIGINT,
            notifier_id {blob},
            notifier_key {blob},
            notifier_secret {blob},
            UNIQUE (server_id, rcv_id)
        );
        CREATE INDEX rcv_queues_by_connection ON rcv_queues (conn_id);
        CREATE UNIQUE INDEX rcv_queues_by_notifier ON rcv_queues (server_id, notifier_id)
            WHERE notifier_id IS NOT NULL;
        CREATE INDEX rcv_queues_to_do ON rcv_queues (status)
            WHERE status IN ('securing', 'deleting');
        CREATE TABLE snd_queues (
            queue_id {identity},
            conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
            server_id BIGINT NOT NULL REFERENCES servers,
            snd_id {blob} NOT NULL,
            status TEXT NOT NULL,
            is_current INTEGER NOT NULL,
            sender_key {blob} NOT NULL,
            e2e_public {blob} NOT NULL,
            e2e_secret {blob} NOT NULL,
            sender_can_secure INTEGER NOT NULL,
            UNIQUE (conn_id, server_id, snd_id)
        );
        CREATE TABLE link_keys (
            fingerprint {blob} NOT NULL,
            link_id {blob} NOT NULL,
            sender_key {blob} NOT NULL,
            PRIMARY KEY (fingerprint, link_id)
        );
        CREATE TABLE outgoing (
            seq {identity},
            conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
            queue_id BIGINT,
            number BIGINT NOT NULL,
            kind {blob} NOT NULL,
            notification INTEGER NOT NULL,
            body {blob} NOT NULL,
            attempts INTEGER NOT NULL,
            error TEXT,
            created_at BIGINT NOT NULL
        );
        CREATE INDEX outgoing_by_connection ON outgoing (conn_id, seq);
        CREATE TABLE received (
            message_id {identity},
            conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
            queue_id BIGINT NOT NULL,
            broker_id {blob} NOT NULL,
            broker_ts BIGINT NOT NULL,
            number BIGINT,
            notification INTEGER NOT NULL,
            body {blob},
            received_at BIGINT NOT NULL,
            UNIQUE (queue_id, broker_id),
            UNIQUE (conn_id, number)
        );
        CREATE INDEX received_unhandled ON received (conn_id, message_id) WHERE body IS NOT NULL;
        CREATE INDEX received_handled ON received (received_at) WHERE body IS NULL;
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
            cron_minutes INTEGER NOT NULL,
            created_at BIGINT NOT NULL,
            checked_at BIGINT NOT NULL
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
