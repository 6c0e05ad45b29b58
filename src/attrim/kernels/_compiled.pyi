"""Addresses of the functions in compiled.c, each of which takes one pointer to its parameters, and their sizes."""

count: int
attend: int
look_up: int
attend_sparse: int
BINS: int
BEST_PATH: int
ATTEND_SIZE: int
COUNT_SIZE: int
LOOK_UP_SIZE: int
SPARSE_SIZE: int
