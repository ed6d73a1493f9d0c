"""The report in a real browser: headless Chromium opens it offline, from the disk, without a word on its console."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.bench.test_report import ATTACK, usual

from surefoot.bench.report.page import render

NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("chrome-headless-shell", "headless_shell", "microsoft-edge"),
)
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason=f"NOT CHECKED in a browser: none of {', '.join(NAMES)} is installed; test_report.py checks the file itself",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The page as the browser understood it, and what it said on its console."""

    dom: str
    console: list[str]


def opened(html: str, folder: Path) -> Opened:
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    assert BROWSER is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    offline = [
        "--proxy-server=http://127.0.0.1:9",
        "--proxy-bypass-list=<-loopback>",
        "--disable-background-networking",
    ]
    own = [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    done = subprocess.run(
        [BROWSER, *flags, *offline, *own, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return Opened(dom=done.stdout, console=[line for line in done.stderr.splitlines() if "CONSOLE" in line])


@pytest.mark.parametrize("attack", ["", ATTACK], ids=["usual", "attacked"])
def test_the_report_opens_without_console_messages(attack: str, tmp_path: Path) -> None:
    page = opened(render(usual(attack)), tmp_path)
    assert page.console == []
    assert page.dom.count("<svg") == 14
    assert page.dom.rstrip().endswith("</html>")
    assert page.dom.count("<script") == 1, "nothing that was supplied became a script"
    assert "<img" not in page.dom


def test_planted_faults_are_heard(tmp_path: Path) -> None:
    faults = "<script>console.error('planted')</script><script>undefined.planted</script>"
    assert len(opened(f"<!doctype html><html><body>{faults}</body></html>", tmp_path).console) == 2
    outside = "<script>1</script><img src='https://example.com/planted.png'>"
    refused = opened(render(usual()).replace("<body>", f"<body>{outside}"), tmp_path).console
    assert len(refused) == 2, "the page's own policy lets nothing in that is not in the file"
    assert all("Content Security Policy" in line for line in refused)
