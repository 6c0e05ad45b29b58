"""What everything else builds on."""
