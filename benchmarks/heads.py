"""What scoring heads costs: ``python benchmarks/heads.py``.

The same examples in one process, in interleaved rounds:

- ``(a) one by one``: the original's way, a forward and backward pass for each example, with gradient x attention from
  attention maps (eager), and a pass of layer-wise relevance whatever the score;
- ``(b) training step``: a batched forward and backward pass with SDPA and gradients of all parameters, as fine-tuning
  does; what scores are compared with;
- the scores ``gradient-attention``, ``gradient``, ``fisher`` and ``lrp`` of attrim, batched.

Each way goes through the same small data set of a few batches. Targets: gradient-attention at most 1.0 x (b) with 64
and 128 tokens and 0.8 x with 384; lrp at most 2.5 x (b). Times are CPU seconds of the process, which other work on the
machine disturbs less, medians over the rounds.

A second table scores LXMERT with 9/5/5 layers and VisualBERT-base at full size, with random weights, because no trained
ones can be had here, in a batch of 8: CPU seconds and peak memory of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait disturb on a shared machine

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from attrim.core.registry import SCORES

TARGETS = {("gradient-attention", 64): 1.0, ("gradient-attention", 128): 1.0, ("gradient-attention", 384): 0.8}
LRP_TARGET = 2.5
BATCHED = ("gradient-attention", "gradient:towards=nothing", "fisher", "lrp")
VISUAL = ("lxmert", "visualbert")
QUESTION, REGIONS = 20, 36


def bert(hidden: int, layers: int) -> nn.Module:
    """A BERT classifier with random weights: time does not depend on them."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=12,
                        intermediate_size=4 * hidden, num_labels=2)  # fmt: skip
    return BertForSequenceClassification(config).eval()


Batches = Sequence[dict[str, Tensor]]


def training_step(model: nn.Module, batches: Batches) -> None:
    """(b): forward, loss and gradients of all parameters."""
    for batch in batches:
        model(**batch).loss.backward()
        model.zero_grad()


def one_by_one(model: nn.Module, batches: Batches) -> list[Tensor]:
    """(a): for each example maps with gradients, and relevance in a pass of its own; gives gradient x attention."""
    lrp = SCORES["lrp"](scope="example")
    found = []
    examples = [(batch, number) for batch in batches for number in range(len(batch["labels"]))]
    for batch, number in examples:
        one = {name: tensor[number : number + 1] for name, tensor in batch.items() if name != "labels"}
        model.set_attn_implementation("eager")
        output = model(**one, output_attentions=True)
        slopes = torch.autograd.grad(output.logits.max(), output.attentions)
        pairs = zip(slopes, output.attentions, strict=True)
        found.append(torch.stack([(slope * maps).sum((2, 3))[0] for slope, maps in pairs]))
        lrp(model, [one])
    model.set_attn_implementation("sdpa")
    return found


def scored(text: str) -> Callable[[nn.Module, Batches], None]:
    """One of attrim's scores, for every example."""
    from attrim.core.text import parse

    score = parse(SCORES, f"{text}{',' if ':' in text else ':'}scope=example")

    def run(model: nn.Module, batches: Batches) -> None:
        score(model, batches)

    return run


def seconds(function: Callable[[], object]) -> float:
    """CPU seconds of the process."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def compare(model: nn.Module, length: int, examples: int, batches: int, rounds: int) -> dict[str, float]:
    """Median CPU seconds of every way to score the same batches."""
    generator = torch.Generator().manual_seed(length)
    data = [
        {
            "input_ids": torch.randint(1000, 30000, (examples, length), generator=generator),
            "attention_mask": torch.ones(examples, length, dtype=torch.long),
            "labels": torch.randint(2, (examples,), generator=generator),
        }
        for _ in range(batches)
    ]
    ways: dict[str, Callable[[nn.Module, Batches], object]] = {"(a) one by one": one_by_one}
    ways |= {"(b) training step": training_step, **{text: scored(text) for text in BATCHED}}
    check(model, data[0])
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(seconds(lambda way=way: way(model, data)))  # type: ignore[misc]
    return {name: statistics.median(own) for name, own in times.items()}


def check(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Both ways must give the same numbers, or their times say nothing; also warms everything up."""
    few = {name: tensor[:2] for name, tensor in batch.items()}
    slow = torch.stack(one_by_one(model, [few])).double()
    fast = SCORES["gradient-attention"](scope="example")(model, [few]).table()
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-6)


def visual(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A full-size model with random weights, and a batch of eight questions about 36 regions."""
    import transformers

    torch.manual_seed(0)
    inputs: dict[str, Tensor] = {
        "input_ids": torch.randint(1000, 30000, (8, QUESTION)),
        "attention_mask": torch.ones(8, QUESTION, dtype=torch.long),
    }
    regions, mask = torch.rand(8, REGIONS, 2048), torch.ones(8, REGIONS, dtype=torch.long)
    if name == "lxmert":
        config = transformers.LxmertConfig(num_qa_labels=3129)
        inputs |= {"visual_feats": regions, "visual_pos": torch.rand(8, REGIONS, 4), "visual_attention_mask": mask}
        return transformers.LxmertForQuestionAnswering(config).eval(), inputs
    config = transformers.VisualBertConfig(visual_embedding_dim=2048, num_labels=3129)
    inputs |= {"visual_embeds": regions, "visual_attention_mask": mask, "visual_token_type_ids": torch.zeros_like(mask)}
    return transformers.VisualBertForQuestionAnswering(config).eval(), inputs


def peak_memory() -> float:
    """MiB that this process had at most; not inherited from its parent, as what getrusage gives is."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def child(name: str, score: str) -> None:
    """Score one batch in this process, and print seconds, peak memory and what was scored."""
    from attrim.scores.taps import influential_sites

    model, batch = visual(name)
    reached = influential_sites(model, {key: tensor[:1] for key, tensor in batch.items()})
    before = peak_memory()
    begun = time.process_time()
    found = SCORES[score](scope="example")(model, [batch])
    took = time.process_time() - begun
    peak = peak_memory()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"seconds": took, "peak": peak, "before": before, "parameters": parameters / 1e6}
    sites = f"{len(reached)} of {len(found.sites)}"
    print(json.dumps({**facts, "sites": sites, "heads": sum(site.heads for site in reached), **found.facts}))


def main() -> None:
    """Print both tables, and say which targets are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384, help="width of the BERT (384 is MiniLM's, 768 BERT-base's)")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 384])
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a batch")
    parser.add_argument("--batches", type=int, default=3, help="batches of the data set")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("text", "visual"))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    console, missed = Console(width=120), []
    if arguments.only != "visual":
        model = bert(arguments.hidden, arguments.layers)
        title = f"BERT {arguments.layers} x 12 heads, width {arguments.hidden}, {arguments.tokens} tokens a batch"
        table = Table(
            title=f"{title}, {arguments.rounds} rounds, {torch.get_num_threads()} threads: CPU seconds, x (b)"
        )
        table.add_column("")
        results = {}
        for length in arguments.lengths:
            table.add_column(f"{length} tokens", justify="right")
            results[length] = compare(model, length, max(1, arguments.tokens // length), arguments.batches,
                                      arguments.rounds)  # fmt: skip
        for name in next(iter(results.values())):
            cells = []
            for length, times in results.items():
                ratio = times[name] / times["(b) training step"]
                most = LRP_TARGET if name == "lrp" else TARGETS.get((name, length))
                cells.append(f"{times[name]:.2f}  {ratio:.2f} x" + ("" if most is None else f" (at most {most})"))
                missed += [f"{name}, {length} tokens: {ratio:.2f} x"] if most is not None and ratio > most else []
            table.add_row(name, *cells)
        console.print(table)
    if arguments.only != "text":
        table = Table(title="Full size, random weights, a batch of 8: 20 tokens, 36 regions")
        for column in (
            "model",
            "parameters (M)",
            "sites",
            "heads",
            "score",
            "CPU seconds",
            "peak MiB",
            "without scoring",
        ):
            table.add_column(column, justify="right" if column not in ("model", "score") else "left")
        for name in VISUAL:
            for score in ("gradient-attention", "lrp"):
                words = [sys.executable, __file__, "--child", name, score]
                found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
                texts = (f"{found[key]:.0f}" for key in ("peak", "before"))
                table.add_row(name, f"{found['parameters']:.0f}", found["sites"], str(found["heads"]), score,
                              f"{found['seconds']:.2f}", *texts)  # fmt: skip
        console.print(table)
    console.print("Missed: " + "; ".join(missed) if missed else "All targets are met.")


if __name__ == "__main__":
    main()
