"""Consumers of the outbox's events: the chessboard, which frees property objects, and the notifications."""
