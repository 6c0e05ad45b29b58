"""Fast paths; every one has a plain reference that it must agree with."""
