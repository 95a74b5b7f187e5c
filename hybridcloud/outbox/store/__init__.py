"""What the engine keeps: tables, switches, and what runs its SQL."""
