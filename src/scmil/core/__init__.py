"""Utilities that do not depend on slides or models: files, tables, downloads, registries, jobs."""
