"""What reacts to outbox messages, at the outer edge; without it messages are delivered to nobody."""
