"""The push handling of a phone: extension, previews, badges, responses, background refresh.

Machines are pure and total: time and the platform are arguments, and effects are returned values.
Diagrams are in docs/device.md. The agent and the platform are protocols, in `ports`;
`heliograph.phone` implements them.
"""
