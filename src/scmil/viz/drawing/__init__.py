"""Drawing on slides: tiles, colours, sheets, overlays, detections for QuPath."""
