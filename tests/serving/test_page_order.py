"""The web page while answers of the server are late, missing or incomplete.

The tests hold back requests. The model reverses words, and the second translation of a
text ends with an exclamation mark.
"""

import json

import pytest
from page_actions import expect, translate


@pytest.fixture
def held_page(open_page):
    """The page, and a list of the requests that it has sent but that are not answered.

    `hold(words)` holds back the requests whose bodies contain one of the words.
    """
    page, held = open_page(), []

    def hold(*words):
        def handle(route):
            if any(word in route.request.post_data for word in words):
                held.append(route)
            else:
                route.continue_()

        page.route("**/*:predict", handle)

    page.hold = hold
    return page, held


def wait_for(page, held, count):
    """Waits until the page has sent `count` requests that are held back."""
    for _ in range(600):
        if len(held) >= count:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"{len(held)} requests instead of {count}")


def last_word(page):
    group = page.get_by_role("group", name="Words of the translation")
    return group.get_by_role("button").last


def test_late_attention_of_another_choice_is_ignored(held_page):
    page, held = held_page
    page.hold('"attend"')
    translate(page, "one two")
    wait_for(page, held, 1)
    page.locator("#n-best button").nth(1).click()
    wait_for(page, held, 2)
    expect(page.locator("#attention-card")).to_be_hidden()
    held[1].continue_()
    expect(last_word(page)).to_have_text("one!")
    held[0].continue_()
    page.wait_for_timeout(500)
    expect(last_word(page)).to_have_text("one!")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret", "The server failed"),  # an error of the fake model
        (" ", "Type a sentence first"),
    ],
)
def test_late_attention_does_not_appear_under_a_message(held_page, text, message):
    page, held = held_page
    page.hold('"attend"')
    translate(page, "one two")
    wait_for(page, held, 1)
    translate(page, text)
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("#working")).to_have_text("")
    held[0].continue_()
    page.wait_for_timeout(500)
    expect(page.locator("#attention-card")).to_be_hidden()


def test_new_text_replaces_a_translation_in_progress(held_page):
    page, held = held_page
    working = page.locator("#working")
    expect(working).to_have_text("")
    page.hold("one two")
    translate(page, "one two")
    wait_for(page, held, 1)
    expect(working).to_have_text("Translating…")
    translate(page, "one two")  # the same text, as in a double click
    translate(page, "a b")
    expect(page.locator("#best")).to_have_text("b a")
    expect(working).to_have_text("")
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_timeout(500)
    expect(page.locator("#best")).to_have_text("b a")
    expect(page.locator("#stale")).to_be_hidden()


@pytest.mark.parametrize("body", ["<html>proxy</html>", "{}"])
def test_incomplete_answers_are_described(open_page, body):
    page = open_page()
    page.route("**/*:predict", lambda route: route.fulfill(status=200, body=body))
    translate(page, "a b")
    expect(page.get_by_role("alert")).to_contain_text(
        "The server's answer is incomplete"
    )


def test_page_works_with_exports_that_lack_outputs(open_page):
    """Like `ExportedTranslator`, the page then shows the best translation only."""
    page = open_page()

    def remove(route):
        answer = route.fetch()
        content = answer.json()
        for name in ("counts", "truncated"):
            content["outputs"].pop(name, None)
        route.fulfill(response=answer, body=json.dumps(content))

    page.route("**/*:predict", remove)
    translate(page, "a b")
    expect(page.locator("#best")).to_have_text("b a")
    expect(page.locator("#n-best li")).to_have_count(1)
    expect(page.locator("#warnings")).to_be_hidden()
    expect(page.locator("#attention-card")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_incomplete_attention_is_described(open_page):
    page = open_page()
    cut = page.locator("#attention-cut")

    def truncate(route):
        answer = route.fetch()
        content = answer.json()
        if '"attend"' in route.request.post_data:
            content["outputs"]["truncated"] = [True]
        route.fulfill(response=answer, body=json.dumps(content))

    translate(page, "a b")
    expect(page.locator("#attention-card")).to_be_visible()
    expect(cut).to_be_hidden()
    page.route("**/*:predict", truncate)
    translate(page, "a b c")
    expect(cut).to_be_visible()
