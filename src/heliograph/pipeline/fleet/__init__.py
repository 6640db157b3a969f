"""Wake a fleet: select tokens by a condition, plan the wake, and report its progress."""
