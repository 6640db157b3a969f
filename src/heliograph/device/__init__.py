"""What a phone does with a push: the extension, previews, badges, responses, background refresh.

Machines are pure and total: time and the platform are passed in, and what is to be done comes back
as values. Diagrams are in docs/device.md. It knows no other part of Heliograph: the agent and the
platform are the protocols of `ports`; they meet in `sim.phone` and on the command line.
"""
