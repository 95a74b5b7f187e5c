"""Receivers of outbox messages, the outermost layer."""
