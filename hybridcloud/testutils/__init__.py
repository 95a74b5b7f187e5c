"""Tools for testing code that uses hybridcloud; without it users test against the engine's insides."""
