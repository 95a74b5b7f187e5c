"""The suite; a package so that a `tests` of someone else on the path cannot be taken for it."""
