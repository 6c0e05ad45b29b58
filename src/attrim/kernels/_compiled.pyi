"""Addresses of the functions in compiled.c, each for torch's parallel_for, and the sizes of their parameters.

Two functions are called as such, because baked models call them in every pass.
"""

from weakref import ReferenceType

from torch import nn

def attend_sparse_again(
    parallel_for: int, threads: int, parameters: int, query: int, key: int, value: int, output: int, /
) -> int: ...
def same_modules(
    model: nn.Module, references: tuple[ReferenceType[nn.Module] | None, ...], leaves: frozenset[type[nn.Module]], /
) -> bool: ...

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
