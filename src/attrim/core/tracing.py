"""Whether tensors have numbers that code may look at."""

from __future__ import annotations

import torch


def is_symbolic() -> bool:
    """Whether what runs now must hold for other numbers than those that the tensors have, if they have any.

    That is so while torch traces a model (``torch.export``, ``torch.jit.trace``), and inside of ``torch.func``, whose
    tensors stand for many (``vmap``) and have no address. No decision may then depend on the numbers of a tensor, no
    kernel of ours may read them, and nothing that is computed may be kept for a later pass.

    Not so under ``torch.compile``, which breaks its graph where code asks for numbers. It must: it would not notice
    that a context is active in one call and not in the next.
    """
    if torch.compiler.is_compiling():  # and then no more is asked, because that alone would break the graph
        return torch.compiler.is_exporting()
    return (
        torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
