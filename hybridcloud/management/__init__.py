"""The framework's `manage.py` commands, in the package Django searches."""
