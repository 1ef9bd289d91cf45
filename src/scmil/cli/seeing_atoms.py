"""What the atoms have learned: scmil atlas and scmil pca."""
