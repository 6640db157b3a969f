"""The tables of the messaging router, once for SQLite and PostgreSQL."""

from heliograph.db.database import Migration

MIGRATIONS = (
    Migration(
        "0001_queues",
        """
        CREATE TABLE queues (
            recipient_id {blob} PRIMARY KEY,
            sender_id {blob} NOT NULL UNIQUE,
            recipient_keys {blob} NOT NULL,
            secret {blob} NOT NULL,
            sender_key {blob},
            mode TEXT,
            status TEXT NOT NULL,
            blocked TEXT,
            link_id {blob} UNIQUE,
            link_hash {blob},
            service_id {blob},
            notifier_id {blob} UNIQUE,
            notifier_key {blob},
            notifier_secret {blob},
            notifier_service_id {blob}
        );
        CREATE INDEX queues_by_notifier_service ON queues (notifier_service_id)
            WHERE notifier_service_id IS NOT NULL;
        CREATE INDEX queues_by_service ON queues (service_id) WHERE service_id IS NOT NULL;
        CREATE TABLE links (
            recipient_id {blob} PRIMARY KEY,
            fixed_data {blob} NOT NULL,
            user_data {blob} NOT NULL
        );
        CREATE TABLE messages (
            seq {serial} PRIMARY KEY,
            recipient_id {blob} NOT NULL,
            msg_id {blob} NOT NULL,
            timestamp BIGINT NOT NULL,
            notification INTEGER NOT NULL,
            body {blob}
        );
        CREATE INDEX messages_by_queue ON messages (recipient_id, seq);
        CREATE INDEX messages_by_time ON messages (timestamp);
        CREATE TABLE notifications (
            seq {serial} PRIMARY KEY,
            notifier_id {blob} NOT NULL,
            nonce {blob} NOT NULL,
            meta {blob} NOT NULL,
            timestamp BIGINT NOT NULL
        );
        CREATE INDEX notifications_by_notifier ON notifications (notifier_id, seq);
        CREATE TABLE services (
            service_id {blob} PRIMARY KEY,
            role TEXT NOT NULL,
            fingerprint {blob} NOT NULL UNIQUE,
            queue_count BIGINT NOT NULL,
            ids_hash {blob} NOT NULL
        )
        """,
    ),
)
