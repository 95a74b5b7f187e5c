"""The engine's tables, state and switches, and what runs its SQL."""
