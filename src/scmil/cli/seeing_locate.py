"""How well a model finds lesions: scmil locate."""
