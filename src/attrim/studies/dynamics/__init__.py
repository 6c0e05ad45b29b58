"""How attention comes to point where it points, while a model trains."""
