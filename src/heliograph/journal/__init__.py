"""The routers' event journal: what happened, without saying to whom.

No device token, queue ID, key or address is ever in it.
"""
