"""The local web app of ``attrim serve``: runs to look at, and a model to try edits on."""
