"""Addresses of the functions in compiled.c, each for torch's parallel_for, and the sizes of their parameters."""

count: int
attend: int
look_up: int
attend_sparse: int
describe_rows: int
INTERFACE: int
BINS: int
BEST_PATH: int
ATTEND_SIZE: int
COUNT_SIZE: int
LOOK_UP_SIZE: int
SPARSE_SIZE: int
ROWS_SIZE: int
