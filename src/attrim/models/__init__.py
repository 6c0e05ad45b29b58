"""Models and tokenizers: where they come from, and how they are read."""
