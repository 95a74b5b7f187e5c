"""The Django app of the models that the benchmarks write."""
