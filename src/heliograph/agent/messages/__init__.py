"""Messages between agents: envelopes, sending, receiving and their store."""
