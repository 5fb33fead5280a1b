"""Actions and checks in the web page, for tests in headless Chromium.

If the environment variable KERAS_TRANSFORMER_SHOTS names a folder, `shoot` writes
screenshots there.
"""

import os
import pathlib

SHOTS = os.environ.get("KERAS_TRANSFORMER_SHOTS")
TIMEOUT = 60_000  # milliseconds


def shoot(page, name):
    if SHOTS:
        page.screenshot(path=pathlib.Path(SHOTS) / f"{name}.png", full_page=True)


def translate(page, text):
    page.get_by_role("textbox", name="Text").fill(text)
    page.get_by_role("button", name="Translate").click()


def expect(locator):
    from playwright.sync_api import expect as expect_locator

    return expect_locator(locator)
