"""Pictures of what a model looks at: scmil heatmap."""
