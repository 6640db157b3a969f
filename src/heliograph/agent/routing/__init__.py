"""How a sender's commands reach a messaging router: directly, or through a proxy."""
