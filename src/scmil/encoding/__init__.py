"""From slides to bags: encoders, features, and the stages tile and encode."""
