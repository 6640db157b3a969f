"""The messaging router's store: queues, messages and notifications."""
