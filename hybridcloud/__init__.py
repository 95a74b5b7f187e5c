"""A typed, sharded transactional outbox between Django silos; without it they do not know of one another."""
