"""What a request may ask for, and the edits that the controls of the page stand for.

Edits come as numbers and choices, never as the text of ``--edit``, which can name files.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..edits.base import Edit
from ..edits.quantize import Quantize
from ..edits.threshold import Threshold
from ..edits.window import Window

LONGEST_TEXT = 20_000
"""Characters of a text."""
MOST_STEPS = 512
"""Tokens that a prompt can be gone on with."""
Name = Annotated[str, Field(min_length=1, max_length=200)]
Share = Annotated[float, Field(ge=0, le=1)]
ExampleNumber = Annotated[int, Field(ge=0, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Asking(BaseModel):
    """Base of all that requests hold: a field that is not known is refused, and so are NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LiveInput(Asking):
    """What the model is asked."""

    text: str = Field("", max_length=LONGEST_TEXT)
    pair: str = Field("", max_length=LONGEST_TEXT, description="Second text, such as the paragraph of a question.")
    example: ExampleNumber | None = Field(None, description="The example of the task whose image is asked about.")
    steps: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(
        (), max_length=MOST_STEPS, description="Tokens that the text goes on with, where the model writes."
    )


class ThresholdControl(Asking):
    """Zero small weights."""

    rule: Literal["bar", "top", "mass"] = "bar"
    value: Annotated[float, Field(ge=0, le=1_000)]
    relative_to: Literal["one", "uniform", "row-maximum"] = "one"
    renormalize: bool = False

    def edit(self) -> Edit:
        """The edit itself; ``top`` is a share below 1 and a number of keys from 1 on."""
        if self.rule == "bar":
            return Threshold(self.value, self.relative_to, self.renormalize)
        top = int(self.value) if self.value >= 1 else self.value
        return Threshold(renormalize=self.renormalize, **({"top": top} if self.rule == "top" else {"mass": self.value}))


class QuantizeControl(Asking):
    """Few values."""

    method: Name
    bits: Annotated[int, Field(ge=1, le=16)] | None = None

    def edit(self) -> Edit:
        """The edit itself."""
        return Quantize(self.method, self.bits)


class WindowControl(Asking):
    """Near keys and the first ones."""

    size: Count
    first: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    def edit(self) -> Edit:
        """The edit itself."""
        return Window(self.size, self.first)


class PatternControl(Asking):
    """One sparse pattern from averages."""

    averages: Name
    tau: Share
    scope: Literal["model", "layer", "head", "row"] = "layer"


class ConstantControl(Asking):
    """The first heads of an order computed from averages alone."""

    averages: Name
    order: Name
    heads: Count


class OffControl(Asking):
    """The first heads of an order switched off."""

    order: Name
    heads: Count


class EditControls(Asking):
    """All edits of the page; they are applied in this order."""

    window: WindowControl | None = None
    pattern: PatternControl | None = None
    constant: ConstantControl | None = None
    threshold: ThresholdControl | None = None
    quantize: QuantizeControl | None = None
    off: OffControl | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is switched on."""
        return all(getattr(self, name) is None for name in type(self).model_fields)


class LookRequest(Asking):
    """One input, with and without edits."""

    input: LiveInput
    edits: EditControls = EditControls()

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.input.text.strip() and self.input.example is None:
            raise ValueError("there is no text; type one")
        return self


class RelevanceRequest(Asking):
    """Which tokens the answer of a look comes from."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    levels: tuple[Share, ...] = Field(
        (0.0, 0.4, 0.6, 0.9), min_length=1, max_length=12, description="Shares of the heads that are left out."
    )
    example: ExampleNumber | None = Field(None, description="The example whose image the look was about.")
