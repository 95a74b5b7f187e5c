"""What operators do to messages."""
