"""The page: reports as one HTML file, notebook cells, and the front end that the server shares (``static``)."""
