"""TLS, block connections, listeners, the request/response client and SOCKS.

The only place that touches sockets for the SimpleX protocols. It knows how bytes travel and how a
peer proves who it is, and not what any command means.
"""
