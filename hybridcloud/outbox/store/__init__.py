"""What the engine keeps: tables, state, switches, and the session that runs its SQL."""
