"""Measures the engine beside its peers and the database's own limits: without it no claim of speed could be checked.

``make bench`` runs all of it on a PostgreSQL of its own, durable as in production.
Quote the ratios: absolute figures belong to the machine.
"""
