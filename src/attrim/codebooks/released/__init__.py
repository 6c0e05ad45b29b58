"""What the paper's released functions compute, oddities included, for ``Quantize(..., as_coded=True)``."""
