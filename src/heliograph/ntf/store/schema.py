"""The tables of the notification router, once for SQLite and PostgreSQL. Times in milliseconds."""

from heliograph.db.database import Migration

MIGRATIONS = (
    Migration(
        "0001_tokens",
        """
        CREATE TABLE tokens (
            token_id {blob} PRIMARY KEY,
            device TEXT NOT NULL,
            status TEXT NOT NULL,
            auth_key {blob} NOT NULL,
            dh_private {blob} NOT NULL,
            dh_secret {blob} NOT NULL,
            code {blob} NOT NULL,
            cron_minutes INTEGER NOT NULL,
            cron_due_at BIGINT,
            cron_phase INTEGER,
            created_at BIGINT NOT NULL,
            unverified_since BIGINT,
            seen_at BIGINT NOT NULL
        );
        CREATE INDEX tokens_by_device ON tokens (device, auth_key);
        CREATE INDEX tokens_unverified ON tokens (unverified_since)
            WHERE unverified_since IS NOT NULL;
        CREATE INDEX tokens_unverified_by_device ON tokens (device, unverified_since)
            WHERE unverified_since IS NOT NULL;
        CREATE INDEX tokens_by_cron ON tokens (status, cron_due_at, cron_minutes)
            WHERE cron_due_at IS NOT NULL;
        CREATE TABLE slowed_tokens (
            token_id {blob} PRIMARY KEY,
            slowed_at BIGINT NOT NULL,
            asked_at BIGINT,
            verified_at BIGINT,
            next_push_at BIGINT NOT NULL
        );
        CREATE TABLE wakes (
            wake_id {blob} PRIMARY KEY,
            state TEXT NOT NULL,
            per_minute BIGINT NOT NULL,
            total BIGINT NOT NULL,
            woken BIGINT NOT NULL,
            controlled_at BIGINT NOT NULL,
            begun_at BIGINT NOT NULL
        );
        CREATE TABLE wake_tokens (
            wake_id {blob} NOT NULL,
            position BIGINT NOT NULL,
            token_id {blob} NOT NULL,
            PRIMARY KEY (wake_id, position)
        );
        CREATE TABLE servers (
            server_id BIGINT PRIMARY KEY,
            address TEXT NOT NULL UNIQUE,
            service_chain {blob},
            service_key {blob},
            service_id {blob},
            surplus_count BIGINT NOT NULL DEFAULT 0,
            surplus_hash {blob},
            unused_since BIGINT,
            shards INTEGER NOT NULL DEFAULT 1
        );
        CREATE TABLE deleted_associations (
            server_id BIGINT NOT NULL,
            notifier_id {blob} NOT NULL,
            PRIMARY KEY (server_id, notifier_id)
        );
        CREATE TABLE subscriptions (
            subscription_id {blob} PRIMARY KEY,
            token_id {blob} NOT NULL,
            server_id BIGINT NOT NULL,
            notifier_id {blob} NOT NULL,
            notifier_key {blob} NOT NULL,
            status TEXT NOT NULL,
            error {blob} NOT NULL,
            associated INTEGER NOT NULL,
            UNIQUE (server_id, notifier_id)
        ){updated};
        CREATE INDEX subscriptions_by_token ON subscriptions (token_id);
        CREATE INDEX subscriptions_by_server ON subscriptions (server_id, subscription_id);
        CREATE TABLE last_notifications (
            token_id {blob} NOT NULL,
            subscription_id {blob} NOT NULL,
            seq BIGINT NOT NULL,
            timestamp BIGINT NOT NULL,
            nonce {blob} NOT NULL,
            meta {blob} NOT NULL,
            nonces {blob},
            PRIMARY KEY (token_id, subscription_id)
        );
        CREATE TABLE pending_pushes (
            token_id {blob} NOT NULL,
            kind TEXT NOT NULL,
            provider TEXT NOT NULL,
            seq BIGINT NOT NULL,
            since BIGINT NOT NULL,
            attempts INTEGER NOT NULL,
            next_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL,
            owner BIGINT,
            PRIMARY KEY (token_id, kind)
        );
        CREATE INDEX pending_pushes_by_time ON pending_pushes (provider, next_at);
        CREATE TABLE processes (
            process_id BIGINT PRIMARY KEY,
            name TEXT NOT NULL,
            fingerprint {blob} NOT NULL,
            version TEXT NOT NULL,
            schema TEXT NOT NULL,
            is_leaving INTEGER NOT NULL,
            marker {blob}
        ){updated};
        CREATE TABLE leases (
            process_id BIGINT PRIMARY KEY,
            expires_at BIGINT NOT NULL,
            skew BIGINT NOT NULL
        ){updated};
        CREATE TABLE numbers (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
        CREATE TABLE shards (
            server_id BIGINT NOT NULL,
            shard INTEGER NOT NULL,
            owner BIGINT,
            previous BIGINT,
            generation BIGINT NOT NULL DEFAULT 0,
            subscriptions BIGINT NOT NULL DEFAULT 0,
            rate BIGINT NOT NULL DEFAULT 0,
            PRIMARY KEY (server_id, shard)
        );
        CREATE TABLE new_subscriptions (
            subscription_id {blob} PRIMARY KEY,
            server_id BIGINT NOT NULL
        );
        CREATE TABLE registrations (
            network {blob} NOT NULL,
            at BIGINT NOT NULL,
            PRIMARY KEY (network, at)
        );
        CREATE TABLE pauses (
            provider TEXT NOT NULL,
            host TEXT NOT NULL,
            failures INTEGER NOT NULL,
            until BIGINT NOT NULL,
            at BIGINT NOT NULL,
            PRIMARY KEY (provider, host)
        );
        CREATE TABLE actions (
            action_id TEXT PRIMARY KEY,
            kind TEXT NOT NULL,
            subject {blob} NOT NULL,
            state TEXT NOT NULL,
            applied_at BIGINT NOT NULL,
            is_recorded INTEGER NOT NULL,
            removed {blob} NOT NULL
        );
        CREATE TABLE restrictions (
            action_id TEXT PRIMARY KEY,
            kind TEXT NOT NULL,
            subject {blob} NOT NULL,
            until BIGINT NOT NULL,
            rate BIGINT NOT NULL,
            finding TEXT NOT NULL
        );
        CREATE INDEX actions_unrecorded ON actions (action_id) WHERE is_recorded = 0;
        CREATE INDEX actions_by_time ON actions (kind, applied_at)
        """,
    ),
)
