"""`heliograph demo`: the whole system at work on this machine."""
