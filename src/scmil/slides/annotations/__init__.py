"""Annotations of slides: ASAP XML, GeoJSON, and which file belongs to which slide."""
