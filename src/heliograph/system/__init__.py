"""The whole system in one directory: every part a process of its own, watched by one more.

It knows how the parts are put together, and nothing of what they do: it starts them by their
commands, and a crash of one never touches another.
"""
