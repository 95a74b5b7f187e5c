"""The Django app whose models the benchmarks write: the same columns with and without an outbox."""
