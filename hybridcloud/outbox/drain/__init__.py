"""How claimed shards are read, handed to handlers and settled."""
