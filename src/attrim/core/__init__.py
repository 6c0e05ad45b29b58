"""What everything speaks: sites and selections, calls, the plan of one site, registries, the text grammar."""
