"""The client: connections over messaging routers, notification tokens, decryption of pushes.

`heliograph.agent.agent.Agent` is what applications use.
"""
