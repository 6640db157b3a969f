"""When to try again, as every part does."""

from heliograph.runtime.backoff import Backoff as Backoff
