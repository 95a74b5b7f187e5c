"""How a change and its messages come into one transaction."""
