"""Service-level objectives: definitions, error budgets and burn rates."""
