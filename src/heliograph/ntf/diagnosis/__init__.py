"""What an operator asks of a router: what happened to a token, and does the whole path work."""
