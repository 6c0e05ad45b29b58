"""Models and tokenizers: by hub name, local folder or built-in name."""
