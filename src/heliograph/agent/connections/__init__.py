"""Connections: queues at messaging routers, invitations, rotation and deletion."""
