"""Small tasks and tiny models for the tests of probes and features."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel

from attrim.models.loading import load_tokenizer
from attrim.models.tiny import tiny_model
from attrim.tasks import load_task

TOKENIZER = load_tokenizer("tiny-bert")
LENGTH = 24


def backbone(name="tiny-bert"):
    """A tiny model whose attention is far from uniform."""
    # Without these, DeBERTa's attention does not look at distances.
    distances = {"pos_att_type": ["c2p", "p2c"]} if name == "tiny-deberta" else {}
    model = tiny_model(name, AutoModel, **distances).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def sentences(folder, count=40, split="dev", **options):
    """Sentences of different lengths, their label by their first letter, as a GLUE task on a grid."""
    rows = "".join(f"{'xy'[i % 2]} {'ab ' * (5 * i % 6)}{i}\t{i % 2}\n" for i in range(count))
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)
    name = {"dev": "validation"}.get(split, split)
    given = {"batch_size": 7, "max_length": LENGTH, "layout": "grid", **options}
    return load_task("glue/sst2", data=str(folder), split=name, **given)


def scores(folder, **options):
    """Pairs of sentences with a number, a regression."""
    header = "\t".join(f"c{i}" for i in range(7)) + "\tsentence1\tsentence2\tscore\n"
    rows = "".join(f"{'x	' * 7}{'a' * (1 + i % 5)}\t{'b' * (1 + i % 3)}\t{i % 5}\n" for i in range(12))
    folder.mkdir(exist_ok=True)
    (folder / "dev.tsv").write_text(header + rows)
    return load_task("glue/stsb", data=str(folder), batch_size=5, max_length=LENGTH, layout="grid", **options)


def tags(folder, **options):
    """Sentences of words with a tag each, by their first letter."""
    kinds = ("O", "B-PER", "I-PER", "B-LOC")
    text = "".join(
        "".join(f"{'wxyz'[(i + j) % 4]}{i} X Y {kinds[(i + j) % 4]}\n" for j in range(1 + i % 4)) + "\n"
        for i in range(17)
    )
    path = folder / "tags.txt"
    path.write_text(text)
    given = {"batch_size": 5, "max_length": LENGTH, "layout": "grid", **options}
    return load_task("tokens/ner", data=str(path), **given)


def settle(probe, scale=3.0):
    """Make the answers of a new probe far from ties."""
    for module in (probe.pooler, getattr(probe, "classifier", probe.pooler)):
        nn.init.normal_(module.weight, std=scale / module.in_features**0.5)
    return probe
