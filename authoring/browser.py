"""A JupyterLab server and a headless Chromium in front of it: for the browser test, and to look at the notebooks.

Needs the package `playwright` (`pip install -e .[browser]`) and Debian's `chromium`, or another Chromium whose path
the environment variable `CHROMIUM` gives.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.sign import NotebookNotary

from rlhf_lab.errors import LabError

SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # every cell is on the page, also those that are not in view
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}
PATIENCE = 120_000  # milliseconds: the machine may be busy


def chromium() -> str | None:
    """Path of the Chromium to use, or None."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def jupyterlab(folder: Path, dark: bool = False) -> Iterator["LabPage"]:
    """JupyterLab on `folder`, in a browser window.

    Raises:
        LabError: when there is no Chromium, or the server does not start.
    """
    with _server(folder, dark, trust=True) as (address, token), browser_page() as page:
        yield LabPage(page, address, token)


@contextmanager
def formgrader(course: Path) -> Iterator["FormgraderPage"]:
    """nbgrader's formgrader on a course folder, in a browser window.

    Raises:
        LabError: as `jupyterlab` does.
    """
    with _server(course, dark=False, trust=False) as (address, token), browser_page() as page:
        yield FormgraderPage(page, address, token)


@contextmanager
def browser_page() -> Iterator:
    """Playwright's page of a browser window.

    Raises:
        LabError: when there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    if chromium() is None:
        raise LabError("there is no chromium here: install Debian's package of that name, or set CHROMIUM")
    with sync_playwright() as playwright:
        # Chromium's sandbox wants rights that a container or root does not have; the pages are our own
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(PATIENCE)
            yield page
        finally:
            browser.close()


@contextmanager
def _server(folder: Path, dark: bool, trust: bool) -> Iterator[tuple[str, str]]:
    """Address and token of a JupyterLab on `folder`; with `trust` it shows all outputs of the notebooks there."""
    with tempfile.TemporaryDirectory() as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        token = secrets.token_hex(16)
        _write_settings(Path(place) / "settings", dark)
        if trust:
            _trust(folder, Path(place) / "data")
        log = Path(place) / "log.txt"
        environment = os.environ | {
            "JUPYTERLAB_SETTINGS_DIR": f"{place}/settings",
            "JUPYTERLAB_WORKSPACES_DIR": f"{place}/workspaces",
            "JUPYTER_RUNTIME_DIR": f"{place}/runtime",
            "JUPYTER_DATA_DIR": f"{place}/data",
        }
        command = [
            sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
        ]  # fmt: skip
        with open(log, "wb") as output:
            server = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(address, server, log)
            yield address, token
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()


def _trust(folder: Path, data: Path) -> None:
    """Sign the notebooks in `folder`: whoever has run a notebook sees its outputs as they are, not cleaned."""
    data.mkdir()
    notary = NotebookNotary(data_dir=str(data))
    for path in folder.rglob("*.ipynb"):
        notary.sign(nbformat.read(path, as_version=4))


def _wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api", timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    raise LabError(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _write_settings(folder: Path, dark: bool) -> None:
    settings = SETTINGS | {
        "@jupyterlab/apputils-extension/themes": {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"}
    }
    for name, content in settings.items():
        path = folder / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")


class FormgraderPage:
    """What an instructor does in nbgrader's formgrader. `page` is Playwright's; `dialogs` what scripts popped up."""

    def __init__(self, page, address: str, token: str):
        self.page, self._address, self._token = page, address, token
        self.dialogs: list[str] = []
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(f"{address}/formgrader/manage_assignments?token={token}")

    def open_submission(self, assignment: str, notebook: str, submission: str) -> None:
        """The page of one notebook of a submission, by nbgrader's id of it."""
        self.page.goto(f"{self._address}/formgrader/gradebook/{assignment}/{notebook}")
        self.page.goto(f"{self._address}/formgrader/submissions/{submission}/")
        self.page.wait_for_function("document.querySelector('input.score')?.placeholder !== ''")

    def marks(self) -> dict[str, float]:
        """The automatic mark that each cell shows, by grade id; cells that wait for a person show none."""
        shown = self.page.eval_on_selector_all(
            "input.score", "all => all.map(one => [one.id, one.placeholder])"
        )
        return {name: float(mark) for name, mark in shown if mark}

    def comment(self, number: int, text: str) -> None:
        """Write a comment beside the answer with this number, counted from 0, and let the page save it."""
        field = self.page.locator("textarea.comment").nth(number)
        field.fill(text)
        field.press("Tab")
        self.page.wait_for_load_state("networkidle")

    def comments(self) -> list[str]:
        fields = self.page.locator("textarea.comment")
        return [fields.nth(i).input_value() for i in range(fields.count())]


class LabPage:
    """What a person does in JupyterLab, in their terms. `page` is Playwright's."""

    def __init__(self, page, address: str, token: str):
        self.page = page
        self._address, self._token = address, token

    def open(self, path: str) -> None:
        """Open a file by its address and wait until it is on the screen, and a notebook's kernel is ready."""
        self.page.goto(f"{self._address}/lab/tree/{path}?token={self._token}")
        self.page.wait_for_selector(".jp-Document:not(.lm-mod-hidden)")
        if path.endswith(".ipynb"):
            self._notebook.locator(".jp-Cell").first.wait_for()
            self.page.locator(".jp-StatusBar-Widget", has_text="| Idle").first.wait_for()

    @property
    def _notebook(self):
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    @property
    def editor(self):
        """The text editor in front."""
        return self.page.locator(".jp-FileEditor:not(.lm-mod-hidden) .cm-content")

    def cell(self, text: str):
        """The first code cell whose source holds `text`."""
        return self._notebook.locator(".jp-CodeCell").filter(
            has=self.page.locator(".jp-InputArea-editor", has_text=text)
        ).first  # fmt: skip

    def run(self, text: str) -> str:
        """Run that cell and return the text of its output."""
        cell = self.cell(text)
        cell.locator(".cm-content").click()
        prompt = cell.locator(".jp-InputArea-prompt")
        before = prompt.inner_text()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            "([element, before]) => /\\[\\d+\\]/.test(element.innerText) && element.innerText !== before",
            arg=[prompt.element_handle(), before],
        )
        return cell.locator(".jp-Cell-outputArea").inner_text()

    def follow(self, link: str, near: str) -> None:
        """Click the link of this text in the markdown cell whose heading is `near`; wait for the editor."""
        cell = self._notebook.locator(".jp-MarkdownCell", has=self.page.locator("h3", has_text=near)).first
        cell.get_by_role("link", name=link).first.click()
        self.editor.wait_for()

    def switch_to(self, title: str) -> None:
        """Click a tab of the main area."""
        self.page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab", has_text=title).first.click()

    def save(self) -> None:
        """Ctrl+S, once the tab in front is marked as changed, and wait until it is not any more."""
        in_front = ".lm-DockPanel-tabBar .lm-TabBar-tab.lm-mod-current"
        changed = f"{in_front}.jp-mod-dirty, {in_front} .jp-mod-dirty"
        self.page.wait_for_selector(changed)
        self.page.keyboard.press("Control+S")
        self.page.wait_for_selector(changed, state="detached")

    def type_over(self, text: str, new: str, above: int = 0, below: int = 0) -> None:
        """Select the line of the editor that holds `text`, with some lines around it, and type `new` over them."""
        line = self.editor.locator(".cm-line", has_text=text).first
        line.scroll_into_view_if_needed()
        line.click()
        for _ in range(above):
            self.page.keyboard.press("ArrowUp")
        for key in ("End", "Home", "Home"):  # the first Home stops at the indentation
            self.page.keyboard.press(key)
        for _ in range(above + 1 + below):
            self.page.keyboard.press("Shift+ArrowDown")
        self.page.keyboard.insert_text(new)

    def pictures(self, stem: Path, piece: int = 1500) -> list[Path]:
        """The notebook in front as PNGs, from top to bottom, in pieces of so many pixels."""
        scroller = self._notebook.locator(".jp-WindowedPanel-outer").first
        below = self.page.viewport_size["height"] - scroller.bounding_box()["height"]
        height = scroller.evaluate("element => element.scrollHeight")
        self.page.set_viewport_size(
            {"width": self.page.viewport_size["width"], "height": int(height + below) + 50}
        )
        self.page.wait_for_timeout(2000)  # pictures and formulas find their place
        box = scroller.bounding_box()
        paths = []
        for number, top in enumerate(range(0, int(height), piece)):
            paths.append(stem.with_name(f"{stem.name}-{number:02}.png"))
            clip = {
                "x": box["x"],
                "y": box["y"] + top,
                "width": box["width"],
                "height": min(piece, height - top),
            }
            self.page.screenshot(path=paths[-1], clip=clip)
        return paths


def picture_notebooks(notebooks: list[Path], out: Path, dark: bool = False) -> None:
    """Pictures of executed notebooks as JupyterLab shows them."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for path in notebooks:
            shutil.copy(path, place)
        for path in notebooks:  # each in a fresh window
            with jupyterlab(Path(place), dark) as lab:
                lab.open(path.name)
                pieces = lab.pictures(out / f"{path.stem}-{'dark' if dark else 'light'}")
                print(f"{path.stem}: {len(pieces)} pictures in {out}", flush=True)
