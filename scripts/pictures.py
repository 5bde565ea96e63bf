"""``make pictures``: docs/pictures, from a small search on this machine."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PICTURES = TOP / "docs" / "pictures"
WIDTH, LINE = 8.4, 18


def run(*argv: str) -> str:
    """What a verb prints, in 80 columns."""
    verb = [str(Path(sys.executable).with_name("hpcdet")), *argv]
    return subprocess.run(verb, stdout=subprocess.PIPE, text=True, check=True).stdout


def terminal(command: str, text: str) -> str:
    """A terminal with a command and what it printed, as SVG."""
    lines = [f"$ {command}", *text.rstrip().splitlines()]
    width, height = 82 * WIDTH, LINE * (len(lines) + 1)
    rows = "".join(
        f'<text x="10" y="{LINE * (number + 1)}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">'
        '<rect width="100%" height="100%" rx="6" fill="#1e1e1e"/>'
        f'<g fill="#e0e0e0" font-family="monospace" font-size="14" xml:space="preserve">{rows}</g>'
        "</svg>\n"
    )


def screenshot(page: Path, picture: Path) -> None:
    """The upper part of a page in headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("pictures: chromium is not installed; make packages installs it")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        size = ["--window-size=1000,900", f"--screenshot={picture}"]
        subprocess.run([chromium, *flags, *size, page.as_uri()], check=True, capture_output=True)


def main() -> int:
    """Train the search of ``hpcdet init`` and draw what its verbs show."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HPCDET_ROOT": f"{folder}/experiments", "COLUMNS": "80"}
        os.chdir(folder)
        run("init", "my-model")
        os.chdir("my-model")
        made = run("submit", "random.yaml", "--site", "local", "--wait", "-o", "id").strip()
        (PICTURES / "status.svg").write_text(terminal("hpcdet status @last", run("status", made)))
        report = Path(folder) / "report.html"
        run("report", made, "-o", str(report))
        screenshot(report, PICTURES / "report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
