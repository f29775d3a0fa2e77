"""The page of `pfl-report` as a browser shows it, at the width of a desktop and of a phone."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from pfl_lightning.cli.report import main
from tests.browser.conftest import Browse

WIDTHS = {"desktop": 1280, "phone": 390}
PAGES = {
    "fedpurin": ["fedpurin"],
    "lambda": ["lambda"],
    "many": ["fedobp-0", "fedobp-1", "fedobp-low", "fedobp-high", "local"],
}
SMALLEST = 0.85
"""Scale of a figure below which its text of 8.5 points is hard to read."""
FRAME = """<!doctype html><meta charset="utf-8"><body style="margin:0"><pre id="found"></pre><script>
const frame = document.createElement("iframe");
frame.style = "border:0;width:WIDTHpx;height:900px";
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const look = (image) => ({
    name: image.closest("figure").id, loaded: image.complete && image.naturalWidth > 0, alt: image.alt,
    scale: image.clientWidth / image.naturalWidth, scrolls: Boolean(image.closest(".scroll")),
  });
  const found = {
    width: root.clientWidth, overflow: root.scrollWidth - root.clientWidth,
    figures: [...page.querySelectorAll("figure img")].map(look),
    small: [...page.querySelectorAll("body *")].filter((one) => one.innerText && parseFloat(
      frame.contentWindow.getComputedStyle(one).fontSize) < 12).length,
  };
  document.getElementById("found").textContent = JSON.stringify(found);
};
frame.srcdoc = new TextDecoder().decode(Uint8Array.from(atob("CONTENT"), (c) => c.charCodeAt(0)));
document.body.append(frame);
</script>"""


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page")
    with pytest.raises(SystemExit) as end:
        main([*(str(runs / run) for run in PAGES[request.param]), "--out", str(out), "--quiet"])
    assert not end.value.code
    return out / "report.html"


def measured(browse: Browse, page: Path, width: int, folder: Path) -> dict[str, Any]:
    """The layout of a page in a frame of the given width. Chromium's own window is never as narrow as a phone."""
    content = base64.b64encode(page.read_bytes()).decode()
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)).replace("CONTENT", content))
    dom = browse(frame, "--dump-dom")
    found = re.search(r'<pre id="found">(.+?)</pre>', dom, re.S)
    assert found, dom[:500]
    result: dict[str, Any] = json.loads(found[1].replace("&amp;", "&").replace("&gt;", ">").replace("&lt;", "<"))
    return result


@pytest.mark.parametrize("device", WIDTHS)
def test_everything_fits_and_can_be_read(device: str, page: Path, browse: Browse, tmp_path: Path) -> None:
    found = measured(browse, page, WIDTHS[device], tmp_path)
    assert found["width"] == WIDTHS[device]
    assert found["overflow"] == 0
    assert found["small"] == 0
    assert len(found["figures"]) >= 6
    for figure in found["figures"]:
        assert figure["loaded"], figure["name"]
        assert figure["alt"], figure["name"]
        assert figure["scrolls"] or figure["scale"] >= SMALLEST, figure


def test_a_picture_of_the_page_is_not_empty(page: Path, browse: Browse, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(page, f"--screenshot={picture}", "--window-size=1280,2000")
    pixels = imread(picture)
    assert pixels.shape[:2] == (2000, 1280)
    assert pixels[..., :3].std() > 0.05
