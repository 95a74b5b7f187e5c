"""What the engine keeps: its tables, its SQL, and the session that runs it."""
