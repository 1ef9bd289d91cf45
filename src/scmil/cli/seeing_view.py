"""Slides and models in the browser: scmil view."""
