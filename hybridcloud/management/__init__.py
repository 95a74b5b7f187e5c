"""Commands of the framework for `manage.py`; without the package Django would find none."""
