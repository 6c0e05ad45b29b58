"""Addresses of the functions in compiled.c; each takes one pointer to its parameters."""

count: int
look_up: int
BINS: int
