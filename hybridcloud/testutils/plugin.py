"""The pytest plugin of hybridcloud; without it tests have no fixtures for silos and outboxes."""
