"""Make report_light.png and report_dark.png: the page of `model.report` for the digits, as a browser shows it.

Run `python docs/screenshot.py [BROWSER]` with the extras `report`, `onnx` and `examples`. BROWSER is a Chromium
(default: chromium).
"""
from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import graphq as gq
from graphq.quantization import quantize

DOCS = Path(__file__).parent
SIZE = "1200,640"
SCHEMES = {"light": 1, "dark": 0}
"""Chromium's numbers of color schemes."""


def write_report(folder: Path) -> Path:
    """Train the network of the example, quantize it, and write the report of a profile."""
    subprocess.run([sys.executable, DOCS.parent / "examples" / "digits_int8.py", "--files"], cwd=folder, check=True)
    with np.load(folder / "digits.npz") as arrays:
        x = arrays["x"]
    model = gq.compile(quantize(gq.load_onnx(folder / "digits.onnx"), [{"x": b} for b in np.array_split(x, 8)]))
    model.report(folder / "report.html", x[:64])
    return folder / "report.html"


def main(browser: str = "chromium") -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Path(folder))
        for name, scheme in SCHEMES.items():
            subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser",
                            f"--window-size={SIZE}", f"--blink-settings=preferredColorScheme={scheme}",
                            f"--screenshot={DOCS}/report_{name}.png", page.as_uri()], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
