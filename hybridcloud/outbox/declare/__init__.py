"""What messages there are: categories, scopes and their policy, identifiers, signals."""
