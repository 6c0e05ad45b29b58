"""Where attention modules keep the weights of their heads, as data: one row serves every class that looks alike.

A row names attributes of the attention module. A path that begins with ``../`` starts at the module's parent, a name
that ends with ``?`` may be missing. The first row whose names are all there is taken; a class that resembles a row by
chance is found out by the comparison that ends every bake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import nn
from transformers.pytorch_utils import Conv1D

from ..core.site import Site
from ..errors import SiteError

PROJECTIONS = (nn.Linear, Conv1D)


@dataclass(frozen=True)
class Projections:
    """How one family of attention modules lays out its heads.

    Attributes
    ----------
    route : how attrim reaches the family's sites.
    output : the projection whose columns are heads.
    query, key, value : projections, or bias vectors, whose rows are heads.
    fused : one projection with the rows of all three.
    layout : fused rows are all queries, all keys, all values (``parts``), or those of one head together (``heads``).
    split : attribute with the sizes of the parts, when the module can take parts that differ.
    without : attributes that modules of this family do not have.
    vectors : parameters with one entry for each head, and the axis of the heads.
    counts, sizes : attributes with the number of heads, and with that number times the head size.
    bias : argument of ``forward`` with one entry for each head (times the batch) on its first axis.
    states : the argument that values are computed from, in modules with a private softmax whose result is the joined
        heads, so that constant heads can be computed beside them.
    weights_follow : such a module returns a pair even when nobody asked for weights.
    real_is_one : its mask is 1 for real tokens (others are additive).
    indexed : the attention function gets a position bias of all heads, of which it takes those that are left.
    refusal : why heads cannot be cut out of this family.
    """

    route: Literal["interface", "softmax"]
    output: str
    query: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    fused: str = ""
    layout: Literal["parts", "heads"] = "parts"
    split: str = ""
    without: tuple[str, ...] = ()
    vectors: tuple[tuple[str, int], ...] = ()
    counts: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    bias: str = ""
    states: str = ""
    weights_follow: bool = False
    real_is_one: bool = False
    indexed: bool = False
    refusal: str = ""

    def fits(self, module: nn.Module) -> bool:
        """Whether the module has everything that the row names."""
        own = () if self.output.startswith("../") else (self.output,)
        vectors = (name for name, _ in self.vectors)
        weights = (*self.query, *self.key, *self.value, *vectors, *own, *filter(None, (self.fused,)))
        needed = (name for name in weights if not name.endswith("?"))
        return (
            all(isinstance(getattr(module, name, None), (*PROJECTIONS, nn.Parameter)) for name in needed)
            and all(hasattr(module, name) for name in (*self.sizes, *filter(None, (self.split,))))
            and not any(hasattr(module, name) for name in self.without)
        )


def row_of(module: nn.Module, site: Site) -> Projections:
    """The row of an attention module, or the reason why there is none."""
    row = next((row for row in ROWS.values() if row.route == site.route and row.fits(module)), None)
    why = "bake does not know where it keeps the weights of its heads" if row is None else row.refusal
    if row is None or why:
        raise SiteError(
            f"The heads of {site.name} ({type(module).__name__}) cannot be cut out: {why}; leave the site out with "
            "select=Select(names=...), or edit without baking."
        )
    return row


_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_SEPARATE = Projections("interface", "../output.dense", ("query",), ("key",), ("value",))
_PROJ = Projections("interface", "o_proj", ("q_proj",), ("k_proj",), ("v_proj",))

ROWS: dict[str, Projections] = {
    # One fused projection, query, key and value of each head together, with biases of its own.
    "deberta": Projections(
        "softmax", "../output.dense", query=("q_bias", "pos_q_proj?"), key=("pos_proj?",), value=("v_bias",),
        fused="in_proj", layout="heads", counts=_COUNTS, sizes=("all_head_size",), states="hidden_states",
        weights_follow=True, real_is_one=True,
    ),
    "deberta-v2": Projections(
        "softmax", "../output.dense", query=("query_proj", "pos_query_proj?"), key=("key_proj", "pos_key_proj?"),
        value=("value_proj",), counts=_COUNTS, sizes=("all_head_size",), states="hidden_states", weights_follow=True,
        real_is_one=True,
    ),
    "lxmert": replace(_SEPARATE, route="softmax", counts=_COUNTS, sizes=("head_size",), states="context"),
    "visual-bert": replace(
        _SEPARATE, route="softmax", counts=_COUNTS, sizes=("all_head_size",), states="hidden_states"
    ),
    "albert": replace(_SEPARATE, output="dense"),
    "bert": _SEPARATE,
    "distilbert": Projections("interface", "out_lin", ("q_lin",), ("k_lin",), ("v_lin",)),
    "llama": replace(_PROJ, vectors=(("sinks?", 0),)),
    "fsmt": replace(
        _PROJ, route="softmax", output="out_proj",
        refusal="its code takes the joined heads to be as wide as the hidden states",
    ),
    "bart": replace(_PROJ, output="out_proj"),
    "t5": Projections("interface", "o", ("q",), ("k",), ("v",), indexed=True),
    "gpt2": Projections("interface", "c_proj", fused="c_attn", split="split_size", without=("q_attn",)),
    "modernbert": Projections("interface", "Wo", fused="Wqkv"),
    "mpt": Projections("softmax", "out_proj", fused="Wqkv", counts=_COUNTS, bias="position_bias"),
    "bloom": Projections("softmax", "dense", fused="query_key_value", layout="heads", counts=_COUNTS, bias="alibi"),
    "xlnet": Projections(
        "softmax", "o", counts=("n_head",),
        vectors=(
            ("q", 1), ("k", 1), ("v", 1), ("o", 1), ("r", 1), ("r_r_bias", 0), ("r_s_bias", 0), ("r_w_bias", 0),
            ("seg_embed", 1),
        ),
    ),
    "torch": Projections(
        "softmax", "out_proj", vectors=(("in_proj_weight", 0),),
        refusal="torch's fused function takes the head size from the width and the number of heads",
    ),
}  # fmt: skip
"""Rows by the name of the first architecture that needed them."""
