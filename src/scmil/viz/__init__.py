"""Pictures: heatmaps, lesions, the atlas of atoms, principal components, the viewer."""
