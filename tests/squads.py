"""Files in SQuAD's format, and a model that knows the answers in them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from attrim.models.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


LONG = "Once there was a fox. " * 12 + "Its name was Ada Lovelace, they say. " + "It slept all day long. " * 12


def squad(tmp_path, paragraphs, name="dev-v1.1.json"):
    """Write paragraphs ``(context, [(question, [answers])])`` in SQuAD's format."""
    number = iter(range(1000))
    articles = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{next(number)}",
                    "question": question,
                    "answers": [{"text": text, "answer_start": context.index(text)} for text in answers],
                    **({} if answers else {"is_impossible": True, "plausible_answers": []}),
                }
                for question, answers in asked
            ],
        }
        for context, asked in paragraphs
    ]
    (tmp_path / name).write_text(json.dumps({"data": [{"title": "t", "paragraphs": articles}]}))
    return str(tmp_path)


class Knows(nn.Module):
    """Finds given texts in what it reads: high logits at their first and last byte token, and at [CLS]."""

    def __init__(self, *answers, nothing=0.0):
        super().__init__()
        self.answers = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in answers]
        self.nothing = nothing

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        start = torch.zeros(input_ids.shape)
        end = torch.zeros(input_ids.shape)
        start[:, 0] = end[:, 0] = self.nothing
        for row, tokens in enumerate(input_ids.tolist()):
            for strength, answer in enumerate(self.answers):
                for place in range(len(tokens)):
                    if tokens[place : place + len(answer)] == answer:
                        start[row, place] = end[row, place + len(answer) - 1] = 5.0 - strength
        return SimpleNamespace(start_logits=start, end_logits=end)


def answered(task, model):
    """All outputs and labels, in the order of the questions, as ``evaluate`` puts them."""
    parts = [(b.index, task.run(model, {**b.inputs, **b.targets}).numpy(), b.labels) for b in task.batches(TOKENIZER)]
    order = np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")
    return tuple(np.concatenate([part[place] for part in parts])[order] for place in (1, 2))
