"""The notification extension: what it does with a push in its 30 seconds."""
