"""Take segments into the table of events: readable ones, copied or rewritten, and checked."""
