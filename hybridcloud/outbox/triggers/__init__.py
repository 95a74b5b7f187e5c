"""Trigger mode: PostgreSQL writes the messages."""
