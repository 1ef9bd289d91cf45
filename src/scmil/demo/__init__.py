"""The two demos of `scmil demo`: a benchmark data set, and synthetic slides."""
