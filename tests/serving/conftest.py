"""A server that tests share, and the web page in headless Chromium."""

import shutil

import pytest
from fake_model import LIMITS, FakeModel, served
from page_actions import TIMEOUT

from keras_transformer.serving.limits import Limits

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
]


@pytest.fixture(scope="session")
def port():
    """Port of a server with `LIMITS` and a fake model."""
    with served(FakeModel(), LIMITS) as port:
        yield port


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as run:
        started = run.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=2 * TIMEOUT
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def page_port():
    with served(FakeModel(), Limits(max_text_length=300)) as port:
        yield port


@pytest.fixture
def open_page(browser, page_port):
    """Function that opens the page. Script errors or external requests fail a test."""
    contexts, complaints = [], []

    def open_page(width=1100, height=800, scheme="light", number=page_port):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((f"http://127.0.0.1:{number}/", "data:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(f"http://127.0.0.1:{number}/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
