"""Benchmarks: the engine beside its peers and the database's own limits.

``make bench`` runs all of them on a PostgreSQL of its own, durable as in production.
Quote the ratios: absolute figures depend on the machine.
"""
