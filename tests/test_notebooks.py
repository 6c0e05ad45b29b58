"""The notebooks of the examples run from top to bottom, and draw what they promise."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra 'dev'")


def pictures(notebook) -> list[np.ndarray]:
    found = [
        output["data"]["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


def test_what_is_stored_has_pictures_and_none_of_the_photographs() -> None:
    """The photographs are not ours to give away."""
    stored = nbformat.read(EXAMPLES / "heads.ipynb", 4)
    assert len(pictures(stored)) == 7
    assert stored.cells[-1]["outputs"] == []


@pytest.mark.slow
def test_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra 'dev'")
    pytest.importorskip("ipykernel", reason="notebooks need the extra 'dev'")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"), prepend=":")
    notebook = nbformat.read(EXAMPLES / "heads.ipynb", 4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell["cell_type"] != "code" else cell.update(outputs=[])
    client = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute()
    drawn = pictures(notebook)
    assert len(drawn) in (7, 9)  # with the photographs, where they are there
    assert all(picture.std() > 5 for picture in drawn)  # not blank
    table = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "pointing (%)" in table
