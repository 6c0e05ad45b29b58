"""Data from the hub, or from its local cache when there is no network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ..errors import DataError
from ..models import sources
from .base import Task


@dataclass(kw_only=True)
class HubData(Task):
    """Base of the tasks whose data has splits and is on the hub.

    Parameters
    ----------
    split : which part of the data.
    revision, cache_dir, local_files_only : for data from the hub.
    """

    split: str = "validation"
    revision: str | None = None
    cache_dir: str | None = None
    local_files_only: bool = False

    def hub_rows(self, name: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a data set of the hub; one with a single configuration needs none."""
        import datasets

        fetch = not self.local_files_only and sources.reachable(name, "dataset", self.revision)
        try:
            with nullcontext() if fetch else sources.offline():
                rows = datasets.load_dataset(
                    name, config, split=split, revision=self.revision, cache_dir=self.cache_dir
                )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            where = "from the hub" if fetch else "from the local cache, as the hub is not used or cannot be reached"
            what = " ".join(filter(None, (name, config, split)))
            raise DataError(
                f"{what} could not be read {where} ({sources.first_line(error)}); "
                "go online once or give a local folder as data."
            ) from error
        yield from rows
