"""Chats: what messages say, how they are stored, and what notifications show of them."""
