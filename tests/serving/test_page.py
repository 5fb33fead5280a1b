"""The server's web page in headless Chromium, with a model that reverses words.

The Web Content Accessibility Guidelines (WCAG) require a contrast of 4.5 for text and 3
for borders, and recommend targets of 44 pixels.
"""

import re

import pytest
from fake_model import FakeModel, served
from page_actions import TIMEOUT, expect, shoot, translate

from keras_transformer.serving.limits import Limits

SENTENCE = "Two young men play football on the green grass"


def test_page_translates_and_shows_attention(open_page):
    page = open_page()
    shoot(page, "empty")
    translate(page, SENTENCE)
    backwards = " ".join(reversed(SENTENCE.split()))
    expect(page.locator("#best")).to_have_text(backwards, timeout=TIMEOUT)
    ranked = page.locator("#n-best li")
    expect(ranked).to_have_count(2)
    expect(ranked.nth(0)).to_contain_text(f"{-len(SENTENCE) / 10:.3f}")
    target = page.get_by_role("group", name="Words of the translation")
    source = page.get_by_role("group", name="Words of the text")
    expect(target.get_by_role("button")).to_have_count(9)
    shoot(page, "translated")
    # In the fake model, the first target word attends to the last source word.
    target.get_by_role("button", name="grass").hover()
    expect(source.get_by_role("button", name="grass")).to_have_text("grass80%")
    expect(page.locator("#summary")).to_contain_text(
        "grass attends to grass 80%, Two 2%"
    )
    shoot(page, "hover")
    source.get_by_role("button", name="Two").hover()
    expect(page.locator("#summary")).to_contain_text("Two is attended to by Two 80%")
    # Choose the second translation of the n-best list.
    ranked.nth(1).get_by_role("button").click()
    expect(page.locator("#best")).to_have_text(backwards + "!")
    pressed = ranked.nth(1).get_by_role("button")
    expect(pressed).to_have_attribute("aria-pressed", "true")
    expect(target.get_by_role("button").last).to_have_text("Two!")


def test_page_works_by_keyboard(open_page):
    page = open_page()
    # The page focuses the text box at its first paint. Earlier keys would be lost.
    expect(page.locator("#source")).to_be_focused()
    page.keyboard.type("one two three")
    page.keyboard.press("Enter")
    expect(page.locator("#best")).to_have_text("three two one")
    expect(page.locator("#attention-card")).to_be_visible()
    # Tab stops: Translate, Copy, two n-best translations, the checkbox, the first word.
    for _ in range(6):
        page.keyboard.press("Tab")
    expect(
        page.get_by_role("group", name="Words of the text").get_by_text("one")
    ).to_be_focused()
    expect(page.locator("#summary")).to_contain_text("one is attended to by one 80%")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"
    # The arrow keys move within a row of words, which is a single tab stop.
    page.keyboard.press("ArrowRight")
    expect(page.locator("#summary")).to_contain_text("two is attended to by two 80%")
    page.keyboard.press("Tab")
    expect(page.locator("#summary")).to_contain_text("three attends to three 80%")
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#summary")).to_contain_text("two is attended to by two 80%")
    for _ in range(2):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#best")).to_have_text("three two one!")


def test_page_fits_a_phone(open_page):
    page = open_page(360, 740)
    translate(
        page, SENTENCE + " beside Donaudampfschifffahrtsgesellschaftskapitänsmütze"
    )
    expect(page.locator("#attention-card")).to_be_visible()
    shoot(page, "phone")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360
    box = page.get_by_role("button", name="Translate").bounding_box()
    assert box["height"] >= 44


def contrast(page, selector):
    """Returns WCAG's contrast ratio of an element's text and its background."""
    colors = page.evaluate(
        """selector => {
          let at = document.querySelector(selector);
          const front = getComputedStyle(at).color;
          let back;
          do { back = getComputedStyle(at).backgroundColor; at = at.parentElement; }
          while (at && back === "rgba(0, 0, 0, 0)");
          return [front, back];
        }""",
        selector,
    )

    return contrast_of(*([int(n) for n in re.findall(r"\d+", c)] for c in colors))


def contrast_of(*colors):
    def luminance(color):
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (n / 255 for n in color[:3])
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted(map(luminance, colors), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_page_shows_and_clears_errors(open_page):
    page = open_page()
    translate(page, "secret")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server failed")
    expect(page.locator("#n-best-card")).to_be_hidden()
    shoot(page, "error")
    page.route("**/*:predict", lambda route: route.abort())
    translate(page, "a b")
    expect(alert).to_contain_text("The server cannot be reached")
    page.unroute("**/*:predict")
    page.route(
        "**/*:predict", lambda route: route.fulfill(status=503, json={"error": "full"})
    )
    translate(page, "a b")
    expect(alert).to_contain_text("The server is busy")
    page.unroute("**/*:predict")
    translate(page, "a b")
    expect(page.locator("#best")).to_have_text("b a")
    expect(alert).to_be_hidden()


def test_page_translates_each_line(open_page):
    page = open_page()
    translate(page, "one two\n\n  three four \nfive")
    expect(page.locator("#best")).to_have_text("two one\n\nfour three\nfive")
    # `expect` ignores white space.
    assert page.locator("#best").text_content() == "two one\n\n  four three \nfive"
    expect(page.locator("#several")).to_be_visible()
    expect(page.locator("#n-best-card")).to_be_hidden()
    # A line has its own n-best list and attention. Its other translations replace it.
    line = page.locator("#best").get_by_role("button", name="four three")
    line.click()
    expect(line).to_have_attribute("aria-pressed", "true")
    ranked = page.locator("#n-best button")
    expect(ranked).to_have_text([re.compile("four three-1.000"), re.compile("three!")])
    target = page.get_by_role("group", name="Words of the translation")
    expect(target.get_by_role("button")).to_have_text(["four", "three"])
    ranked.nth(1).click()
    expect(page.locator("#best")).to_have_text("two one\n\nfour three!\nfive")
    expect(target.get_by_role("button").last).to_have_text("three!")
    shoot(page, "lines")
    translate(page, "\n  one two\n")
    expect(page.locator("#best")).to_have_text("two one")
    assert page.locator("#best").text_content() == "\n  two one\n"
    expect(page.locator("#several")).to_be_hidden()
    expect(page.locator("#n-best-card")).to_be_visible()


def test_lines_are_chosen_by_keyboard(open_page):
    page = open_page(360, 740)
    translate(page, "one two\nthree four\nfive")
    expect(page.locator("#best")).to_have_text("two one\nfour three\nfive")
    # Tab stops: Copy, and the lines, among which the arrow keys move.
    for key in ("Tab", "Tab", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    line = page.locator("#best").get_by_role("button", name="four three")
    expect(line).to_be_focused()
    expect(page.locator("#n-best .text").first).to_have_text("four three")
    expect(page.locator("#attention-card")).to_be_visible()
    shoot(page, "lines-phone")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    expect(page.locator("#n-best .text").first).to_have_text("two one")
    assert page.locator("#best [aria-pressed=true]").all_text_contents() == ["two one"]


def test_page_marks_an_outdated_translation(open_page):
    page = open_page()
    translate(page, "a b")
    expect(page.locator("#best")).to_have_text("b a")
    expect(page.get_by_role("button", name="Translate")).to_be_focused()
    for text, is_stale in (("a b", False), ("a b c", True), ("a b", False)):
        page.get_by_role("textbox", name="Text").fill(text)
        expect(page.locator("#stale")).to_be_visible(visible=is_stale)


def test_page_copies_the_translation(open_page):
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    translate(page, "a b")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "b a"


def test_page_does_not_move_while_hovering(open_page):
    page = open_page(360, 740)
    translate(page, " ".join(f"Donaudampfschifffahrt{n}" for n in range(9)))
    expect(page.locator("#attention-card")).to_be_visible()
    height = page.evaluate("document.documentElement.scrollHeight")
    words = page.get_by_role("group", name="Words of the translation")
    box = words.bounding_box()
    for button in words.get_by_role("button").all():
        button.hover()
        moved = words.evaluate("e => e.getBoundingClientRect().top + scrollY")
        assert moved == pytest.approx(box["y"], abs=1)
    assert page.evaluate("document.documentElement.scrollHeight") == height


def test_page_keeps_the_button_next_to_a_long_text(open_page):
    page = open_page()
    button = page.get_by_role("button", name="Translate")
    top = button.bounding_box()["y"]
    translate(page, "word " * 59)
    expect(page.locator("#n-best-card")).to_be_visible()
    assert button.bounding_box()["y"] == pytest.approx(top, abs=1)


def test_page_aligns_right_to_left_text(open_page):
    page = open_page()
    translate(page, "שלום עולם")
    text = page.locator("#n-best .text").first
    expect(text).to_have_text("עולם שלום")
    style = text.evaluate(
        "e => [getComputedStyle(e).direction, getComputedStyle(e).textAlign]"
    )
    assert style == ["rtl", "start"]
    # The page is in English, but the language of its texts is unknown.
    assert page.locator("html").get_attribute("lang") == "en"
    for locator in (text, page.locator("#best"), page.locator("#source")):
        assert locator.get_attribute("lang") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_enough_contrast(open_page, scheme):
    page = open_page(scheme=scheme)
    translate(page, " ")
    expect(page.get_by_role("alert")).to_be_visible()
    assert contrast(page, "#message") >= 4.5
    translate(page, SENTENCE)
    expect(page.locator("#attention-card")).to_be_visible()
    shoot(page, scheme)
    for selector in ("body", ".note", "#best", "h2", ".main"):
        assert contrast(page, selector) >= 4.5, selector
    style = page.evaluate(
        """() => {
          const [word] = document.querySelectorAll(".word");
          word.style.background = "rgba(var(--mark), .7)";
          const of = element => getComputedStyle(element);
          return [of(word).backgroundColor, of(word).color, of(word).borderTopColor,
                  of(document.querySelector(".card")).backgroundColor];
        }"""
    )
    mark, text, border, card = (
        [float(n) for n in re.findall(r"[\d.]+", color)] for color in style
    )
    alpha = mark[3]
    blended = [alpha * a + (1 - alpha) * b for a, b in zip(mark, card, strict=False)]
    assert contrast_of(text, blended) >= 4.5
    assert contrast_of(border, card) >= 3


def test_page_rejects_long_texts(open_page):
    page = open_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    translate(page, "word " * 61)
    expect(page.get_by_role("alert")).to_contain_text(
        "A line has 304 characters, but at most 300 are allowed"
    )
    expect(page.locator("#count")).to_have_text("304 of 300 characters")
    box = page.get_by_role("textbox", name="Text")
    expect(box).to_have_attribute("aria-invalid", "true")
    shoot(page, "long")
    assert requests == []
    translate(page, "word " * 25)  # truncated by the fake model
    expect(page.locator("#warnings")).to_be_visible()


def test_page_escapes_text(open_page):
    page = open_page()
    translate(page, "<img src=x onerror=alert(1)> <b>x</b>")
    expect(page.locator("#best")).to_have_text("<b>x</b> onerror=alert(1)> src=x <img")
    assert page.locator("main img, main b").count() == 0


def test_page_hides_missing_attention(browser, open_page):
    with served(FakeModel(attend=False), Limits()) as number:
        page = open_page(number=number)
        translate(page, "a b")
        expect(page.locator("#best")).to_have_text("b a")
        expect(page.locator("#n-best li")).to_have_count(2)
        expect(page.locator("#attention-card")).to_be_hidden()
