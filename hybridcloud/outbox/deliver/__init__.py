"""Who drains, and when: flushes, wake-ups, ticks and tasks."""
