"""A typed, sharded transactional outbox between Django silos."""
