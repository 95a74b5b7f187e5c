"""What messages there are: categories, scopes, identifiers, signals."""
