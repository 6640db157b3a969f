"""The app: its states, background refresh, local notifications and responses."""
