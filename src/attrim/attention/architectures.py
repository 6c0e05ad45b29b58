"""What cannot be seen by running a model: roles, streams and oddities of architectures, as data.

Everything else about a site (its module, number of heads, calls in a forward pass, route) is found by a dry run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """What is known about one architecture (a ``config.model_type``).

    Attributes
    ----------
    roles : pairs of a pattern that is searched in the site's name and the role of the sites that match.
    padding_sees_itself : padded tokens may attend to themselves, so that a key which only its own query may
        attend to counts as padding.
    memory : the field of the configuration that says how many tokens before a causal segment are remembered; positions
        are then counted as if the memory were full, so that a query has the same one in every segment.
    unreachable : why attention over keys cannot be read from this architecture, or "".
    """

    roles: tuple[tuple[str, str], ...] = ()
    padding_sees_itself: bool = False
    memory: str = ""
    unreachable: str = ""
    patterns: tuple[tuple[re.Pattern[str], str], ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", tuple((re.compile(pattern), role) for pattern, role in self.roles))

    def role(self, name: str) -> str | None:
        """The role of the site called ``name``, or None when the table does not say."""
        return next((role for pattern, role in self.patterns if pattern.search(name)), None)


_BAND = "its scores are a band around each query, not a row over all keys"
_TWO_TOWERS = ((r"(^|\.)vision_model\.", "vision"), (r"(^|\.)text_model\.", "text"))

TABLE: dict[str, Facts] = {
    # One cross-attention module serves both directions of a layer: call 0 asks from language, call 1 from vision.
    "lxmert": Facts(
        roles=(
            (r"visual_attention\.att#1$", "vision>language"),
            (r"visual_attention\.att$", "language>vision"),
            (r"\.r_layers\.|\.visn_self_att\.", "vision"),
            (r"\.layer\.|\.lang_self_att\.", "language"),
        )
    ),
    "clip": Facts(roles=_TWO_TOWERS),
    "chinese_clip": Facts(roles=_TWO_TOWERS),
    "altclip": Facts(roles=_TWO_TOWERS),
    "siglip": Facts(roles=_TWO_TOWERS),
    "siglip2": Facts(roles=_TWO_TOWERS),
    "metaclip_2": Facts(roles=_TWO_TOWERS),
    "clipseg": Facts(roles=_TWO_TOWERS),
    "xclip": Facts(roles=_TWO_TOWERS),
    "align": Facts(roles=_TWO_TOWERS),
    "groupvit": Facts(roles=_TWO_TOWERS),
    # The mask of XLNet and of its relatives spares the diagonal.
    "xlnet": Facts(padding_sees_itself=True, memory="mem_len"),
    "attrim-transformer-xl": Facts(padding_sees_itself=True, memory="mem_len"),
    # One query for a whole text, which no padding of the text says anything about.
    "attrim-recurrent-classifier": Facts(roles=((r"", "answer>text"),)),
    "longformer": Facts(unreachable=_BAND),
    "led": Facts(unreachable=_BAND),
    "reformer": Facts(unreachable="it sorts keys into hash buckets, so that a row has no fixed keys"),
}

DEFAULT = Facts()

# Words in a module's path that mark cross-attention, encoders, decoders and vision, in every architecture.
_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|multihead_attn$|src_attn", re.IGNORECASE)
_ENCODER = re.compile(r"(^|\.)encoder\.", re.IGNORECASE)
_DECODER = re.compile(r"(^|[._])decoder[._]", re.IGNORECASE)
_VISION = re.compile(r"(^|[._])(vision|visual|image)", re.IGNORECASE)


def facts(model_type: str | None) -> Facts:
    """The row of the table for an architecture; the empty row when it has none."""
    return TABLE.get(model_type or "", DEFAULT)


def role_of(name: str, row: Facts, *, cross: bool, causal: bool, towers: bool, two_stacks: bool) -> str:
    """The role of a site.

    Parameters
    ----------
    cross : the dry run saw queries and keys of different lengths.
    causal : the dry run saw a mask that hides later keys from earlier queries.
    towers : the model has a vision part beside another one.
    two_stacks : the model is an encoder and a decoder, so that paths say which of the two a site is in.
    """
    known = row.role(name)
    if known is not None:
        return known
    if _CROSS.search(name):
        return "cross"
    stack = _stack_of(name) if two_stacks else None
    if stack == "encoder":
        return "encoder"
    if cross:
        return "cross"
    if towers and _VISION.search(name):
        return "vision"
    return stack or ("decoder" if causal else "encoder")


def _stack_of(name: str) -> str | None:
    """The stack that a site is in: the outer one, where a decoder has the code of BERT, whose layers are an encoder."""
    starts = {role: stack.search(name) for role, stack in (("encoder", _ENCODER), ("decoder", _DECODER))}
    found = {role: start.start() for role, start in starts.items() if start is not None}
    return min(found, key=lambda role: found[role]) if found else None


def has_two_stacks(names: Iterable[str]) -> bool:
    """Whether the names of a model's sites are those of an encoder beside a decoder."""
    names = list(names)
    return all(any(stack.search(name) for name in names) for stack in (_ENCODER, _DECODER))


def is_vision(name: str) -> bool:
    """Whether a site's name says that it belongs to the vision part of a model."""
    return bool(_VISION.search(name))
