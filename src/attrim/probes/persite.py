"""Trained tensors of an edit, one a site, as a module: the training loop then finds, checkpoints and resumes them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class PerSite(nn.Module):
    """One parameter a site.

    Parameters
    ----------
    values : site name to the tensor that the parameter begins with.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(values)
        # A list, because the name of a parameter must not have the dots of a site's name.
        self.values = nn.ParameterList(nn.Parameter(value.detach().clone()) for value in values.values())

    def by_site(self) -> dict[str, Tensor]:
        """The parameters themselves by site name, for an edit."""
        return dict(zip(self.names, self.values, strict=True))

    def copied(self) -> dict[str, Tensor]:
        """Copies of the present values by site name."""
        return {name: value.detach().cpu().clone() for name, value in self.by_site().items()}
