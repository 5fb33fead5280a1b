"""Spans and markup in translations by stand-ins for a translator."""

import html.parser
import random
import re
import string
import time

import pytest

from keras_transformer.decoding import Translation
from keras_transformer.decoding.markup import translate_marked
from keras_transformer.decoding.spans import (
    KINDS,
    PROTECTED,
    find_spans,
    lost_spans,
)
from keras_transformer.decoding.text import TextOptions, divide, untranslated_warning
from keras_transformer.decoding.warnings import add_warning
from keras_transformer.errors import DataError, ModelError


class Copy:
    """Translates a text by itself."""

    def __init__(self, change=str):
        self.change, self.warnings = change, []

    def n_best(self, lines, n=1):
        changed = ["\n".join(map(self.change, line.split("\n"))) for line in lines]
        return [[Translation(line, 0.0)] for line in changed]

    def align(self, sources, targets):
        return [[(i, i) for i in range(len(each.split()))] for each in targets]

    def warn(self, index, message):
        self.warnings.append((index, message))


class Unspelled(Copy):
    """Has a search that cannot require anything."""

    search = None

    def n_best(self, lines, n=1, required=None):
        if required:
            raise ModelError("the model cannot generate the required phrase")
        return super().n_best(lines, n)


class Reverse(Copy):
    """Reverses the words of each line."""

    def __init__(self):
        super().__init__(lambda line: " ".join(reversed(line.split(" "))))

    def align(self, sources, targets):
        return [
            [(len(each.split()) - 1 - i, i) for i in range(len(each.split()))]
            for each in targets
        ]


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ("Mail a.b+c@d-e.org, or see https://x.org/?q=(1).", "ue", 2),
        ("Mail a.b+c@d-e.org, or see https://x.org/?q=(1).", "e", ["a.b+c@d-e.org"]),
        (
            "At http://x.org/A_(b), www.y.org/(c).",
            "u",
            ["http://x.org/A_(b)", "www.y.org/(c)"],
        ),
        ("(www.x.org/A_(b)_(c)d)", "u", ["www.x.org/A_(b)_(c)d"]),
        ("{% if x %}{%- include 'x.html' -%} <%= a.b %> [[c]] \\(d) #ff0000", "p", 6),
        ("{0, number} {n, number, integer} {d, date, ::yyyyMMdd}", "p", 3),
        ("%name% $name, (:name) :name_2", "p", ["%name%", "$name", ":name_2"]),
        ("$5 12:30 a:b #1 {x, y} 5%", "p", []),
        ("See www.x.org/a, (http://y.org/b).", "u", ["www.x.org/a", "http://y.org/b"]),
        ("{0} {name} {{ x }} ${v} %s %(n)d %1$s %.2f%%", "p", 9),
        ("50% sure, 5 % a day, {not one}, 100%", "p", []),
        ("10:00:00Z, 1,234,567.89 or 53 00, no. 2024-0317.", "n", 4),
        ("I 😀 it 👍🏽👨‍👩‍👧 ❤️, €5 → ½ “x” — …", "s", ["😀", "👍🏽👨‍👩‍👧", "❤️", "→"]),
        ("If a<b or x<=10, c <d>e<f>g</f>.", "s", ["a<b", "x<=10"]),
        ("x<y and z>w, a<b-c /> d<e f='g' h>, i<j@k.l>", "s", ["x<y"]),
        ("Run `ls -l` in /usr/bin, --help, f_x() or g().", "c", 5),
    ],
)
def test_spans_are_found(text, kinds, expected):
    found = find_spans(text, [kind for kind in KINDS if kind[0] in kinds])
    found = [span.text for span in found]
    assert (len(found) if isinstance(expected, int) else found) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The word 北京, 上海 (2) means x.", ["北京, 上海"]),
        ("It is £10.50, 5 € or 20°C.", ["£10.50", "5 €", "20°C"]),
        ("C++, 3 × 4 and 50% of #x.", ["C++", "3 × 4", "50%", "#x"]),
        ("2½ m², 5µm", ["2½", "m²", "5µm"]),
        ("At https://x.org/北京 or so👍🏽", ["https://x.org/北京", "👍🏽"]),
        ("Dvořák, e\u0301té, QUÉ – “x” … (a; b)", []),
    ],
)
def test_words_and_signs_that_a_model_does_not_know_are_spans(text, expected):
    known = frozenset(string.ascii_lowercase + string.digits + " .,")
    assert [each.text for each in find_spans(text, PROTECTED, known)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Mr Łuk agreed", ["Łuk"]), ("R&D or &", ["R&D", "&"]), ("İ, Đe é", ["İ, Đe"])],
)
def test_letters_that_a_model_cannot_spell_are_spans(text, expected):
    known, unknown = frozenset(string.ascii_letters), frozenset("ŁĐİ&")
    found = [each.text for each in find_spans(text, PROTECTED, known, unknown)]
    assert found == expected
    assert not find_spans(text, PROTECTED, known)


@pytest.mark.parametrize(
    ("source", "text", "is_kept"),
    [
        ("1,234,567.89 at 10:00:00Z", "um 10:00:00Z 1.234.567,89", True),
        ("1,234,567.89", "1\u202f234\u202f567,89", True),
        ("10,000 or 3.5", "10000 oder 3,5", True),
        ("3.5", "35", False),
        ("5 of 15", "5 von 15, 5", False),
        ("no. 2024-0317", "Nr. 2024-317", False),
        ("5", "15", False),
        ("{n} or [[x]] of %s, 👍", "{n} [[x]] %s 👍", True),
        ("{n} or [[x]] of %s", "{{n}} [[x]] %s", False),
        ("{n} or [[x]] of %s", "{n} [[x]]] %s", False),
        ("see 👍 and 👍👍", "👍 👍👍 👍", False),
    ],
)
def test_spans_are_lost_unless_figures_have_another_notation(source, text, is_kept):
    assert (not lost_spans(text, source, find_spans(source, KINDS))) == is_kept


@pytest.mark.parametrize(
    ("source", "translation", "figures"),
    [
        ("1,234.5 at 17:45", "1.234,5 at 145", ["17", "45"]),
        ("01/31/2012, 3:05 PM", "31.1.2012, 15:05", []),
        ("10:00 for 12,000 of 3.5", "10 for 12\u202f000 of 3,5", []),
        ("2008 and 5 of 5", "4008 and 5", ["2008", "5"]),
        ("3 months, 0.25 or 0.7", "30 months, 0.52 or 0,7", ["3", "0.25"]),
    ],
)
def test_changed_figures_have_a_warning(source, translation, figures):
    wrong = Copy(lambda line: translation)
    assert translate_marked(wrong, [source], "text") == [translation]
    warnings = [(0, f"the translation changes '{figure}'") for figure in figures]
    assert wrong.warnings == warnings


# Per syntax: texts, and what becomes of them if a translator reverses the words.
MARKED = {
    "html": {
        "Click <b>here</b> now.": "now. <b>here</b> Click",
        "<p>one <i>two <b>three</b></i> four</p>": (
            "<p>four <i><b>three</b> two</i> one</p>"
        ),
        "one two<br>three four": "two one<br>four three",
        "AT&amp;T, R&#38;D, Q&A": "Q&amp;A R&#38;D, AT&T,",
        "one <y and z> two": "two z> and <y one",
        "one <p hidden>two": None,
        "x &amp; y <a href='?a=1&amp;b=2' title=\"T\">one two</a> &lt; &eacute;": (
            "é &lt; <a href='?a=1&amp;b=2' title=\"T\">two one</a> y &amp; x"
        ),
        "one <img src=x> two": "<img src=x> two one",
        "one <a@b.org> two": "two <a@b.org> one",
        "  <p> padded </p>\n": None,
        "H<sub>2</sub>O <!-- c --> <code>a b</code> &lt;": None,
        "<keep>a <b> &amp;</keep> is kept": None,
        "a<i>b</i> <b>c</b><u>d</u><x/>e": "<b>c</b><u>d</u><x/>e a<i>b</i>",
        "wrapped <b>text\n of</b> lines": "lines <b>of text</b> wrapped",
        "a <i class='x notranslate'>b c</i> d": "d <i class='x notranslate'>b c</i> a",
        "": None,
        "one two.<sup>1</sup> three": "three two.<sup>1</sup> one",
        "one<a href='#2'>[2]</a> two<sup><a href='#1'>[1]</a></sup> three": (
            "three two<sup><a href='#1'>[1]</a></sup> one<a href='#2'>[2]</a>"
        ),
        "one two. <br> three four": "two. one <br> four three",
        "<br>one <b>two</b><br/>": "<br><b>two</b> one<br/>",
        "<p><br>one two <br>three four.<br></p><br>": (
            "<p><br>two one <br>four. three<br></p><br>"
        ),
    },
    "xliff": {
        'one <x id="1"/> <g id="2">two <g id="3">three</g></g>': (
            '<g id="2"><g id="3">three</g> two</g> <x id="1"/> one'
        ),
        '<bpt id="1">&lt;b></bpt>one<ept id="1">&lt;/b></ept> two': (
            'two <bpt id="1">&lt;b></bpt>one<ept id="1">&lt;/b></ept>'
        ),
        'a <mrk mtype="protected">b</mrk> <ph id="3">{0}</ph>': None,
    },
    "markdown": {
        'one **two** [the link](http://x.org/a_(b) "T") *four*': (
            '*four* [link the](http://x.org/a_(b) "T") **two** one'
        ),
        "\\* &amp; <b>html</b> ![alt text](img.png) <http://x.org>": None,
        "``a ` b`` and [text][1]  \nnext line": None,
        "one[^1] *two[^a]* three": "three *two[^a]* one[^1]",
    },
    "text": {
        "one two\nthree<br>four five\n": "two one\nthree<br>five four\n",
        "a & b <b>c d</b> e": "e <b>d c</b> b & a",
        "x < y and\ta<b  c": "c  and\ta<b y < x",
        "if a<b then <i>x</i>": "<i>x</i> then a<b if",
        "<b hidden>x</b> <y and z>": "z> and <y <b hidden>x</b>",
        "x {n, plural, =0 {} one {# {y} z} other {# z}} y": (
            "y {n, plural, =0 {} one {# {y} z} other {# z}} x"
        ),
        "<i>x</i> {n, select, a {<b>a</b> b} other {c d}} y": (
            "y {n, select, a {<b>a</b> b} other {c d}} <i>x</i>"
        ),
        # Escapes of programs.
        r"one two\n\nThree four \n": r"two one\n\nfour Three \n",
        r"\tOne two\tThree four": r"\ttwo One\tfour Three",
        r"Hello, one\ntwo,\nthree four": r"one\ntwo, Hello,\nfour three",
        r"Plan B:\nBuy it": r"B: Plan\nit Buy",
        r"say \"one two\" don\'t": r"don\'t two\" \"one say",
        r"say \"one\" or 'two'": r"'two' or \"one\" say",
        r'"one" \"two\"': r'"two" \"one\"',  # as many as before, in order
        r"<b>one two</b>\nThree &amp; \"four\"": None,
        r"one &lt; \"<b>two</b>\"": r"\"<b>two</b>\" &lt; one",
        r"R & B \"one\" &": r"& \"one\" B & R",
        r"don\'t use {% include 'x' %} now": r"now {% include 'x' %} use don\'t",
        # No escapes.
        r"in C:\new\Report.txt \n": r"C:\new\Report.txt in \n",
        r"<b>a</b> \\host\New or \"": r"\" or \\host\New <b>a</b>",
        r"the \textbf{big} \newline dog": r"dog \newline \textbf{big} the",
        r"the folder src\notes is": r"is src\notes folder the",
        r"use \n for a line": r"line a for \n use",
        r"x\neq y, M\"uller": r"M\"uller y, x\neq",
    },
}


@pytest.mark.parametrize(
    ("syntax", "text"), [(key, text) for key in MARKED for text in MARKED[key]]
)
def test_tags_surround_the_aligned_words(syntax, text):
    assert translate_marked(Copy(), [text], syntax) == [text]
    expected = MARKED[syntax][text]
    if expected is not None:
        assert translate_marked(Reverse(), [text], syntax) == [expected]


def test_without_protection_escapes_and_messages_are_text():
    texts = [r"\"one\" <keep>two</keep> three", r"one\nTwo {n, plural, other {x}}"]
    found = translate_marked(Reverse(), texts, "text", protect=())
    assert found == [
        r"three <keep>two</keep> \"one\"",
        r"{x}} other plural, {n, one\nTwo",
    ]


def test_long_white_space_is_no_escape():
    """A pattern that starts at each space would take half a minute."""
    text = f"a{' ' * 40_000}b"
    start = time.process_time()
    assert translate_marked(Copy(), [text], "text") == [text]
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "translation", "words", "expected"),
    [
        (
            "A <b>wooden</b> bench.",
            "Un banc de bois.",
            "0-0 1-2 1-3 2-1",
            "Un banc <>.",
        ),
        ("A <b>bench.</b> Old", "Alt. Eine Bank.", "0-1 1-2 2-0", "Alt. Eine <>"),
        ("the <b>ship</b> sank", "das „Schiff“ sank", "0-0 1-1 2-2", "das <> sank"),
        ("call <b>it</b> now", "ruf f() auf", "0-0 1-1 2-2", "ruf <> auf"),
        ("so <b>on</b> two", "so ... zwei", "0-0 1-1 2-2", "so <> zwei"),
        ("dogs <b>etc</b> bark", "Hunde usw. bellen", "0-0 1-1 2-2", "Hunde <> bellen"),
    ],
)
def test_a_tag_has_the_punctuation_of_its_words(text, translation, words, expected):
    translator = Copy(lambda line: translation)
    pairs = [tuple(map(int, each.split("-"))) for each in words.split()]
    translator.align = lambda sources, targets: [pairs]
    (found,) = translate_marked(translator, [text])
    assert re.sub("<b>.*</b>", "<>", found) == expected
    assert re.sub("</?b>", "", found) == translation


@pytest.mark.parametrize("syntax", ["text", "html"])
def test_a_model_does_not_see_tags(syntax):
    """It might carry them over, but leave the words between them as they are."""
    copying = Copy(lambda line: line if "<" in line else line.upper())
    texts = ["a <b>new</b> dog", "%(n)d <i>new</i> x", "<b>a</b> http://x.y/?a&copy=1"]
    found = translate_marked(copying, texts[:1], syntax)
    assert found == ["A <b>NEW</b> DOG"]
    assert translate_marked(Reverse(), texts, syntax) == [
        "dog <b>new</b> a",
        "x <i>new</i> %(n)d",
        "http://x.y/?a&copy=1 <b>a</b>",
    ]


def test_spans_that_are_words_are_no_parts_of_words():
    """Nor are they other words of the text with the same letters."""
    texts = [
        "the letter <code>e</code> here",
        "a house is <code>a</code>",
        "<code>in</code> is an operator in <b>code</b>",
        "<code>e</code>s <kbd>x</kbd>",
    ]
    assert translate_marked(Reverse(), texts) == [
        "here <code>e</code> letter the",
        "<code>a</code> is house a",
        "<b>code</b> in operator an is <code>in</code>",
        "<kbd>x</kbd> <code>e</code>s",
    ]
    change = {"in": "dans", "code": "langage"}
    french = Copy(lambda line: " ".join(change.get(x, x) for x in line.split(" ")))
    assert translate_marked(french, texts[2:3]) == [
        "<code>in</code> is an operator dans <b>langage</b>"
    ]


def test_text_in_capitals_has_standins_in_capitals():
    capitals = Copy(lambda line: f"{line} OK" if line.isupper() else line)
    texts = ["SEE %s FILES", "<b>SEE</b> {name} AND {n}", "NATO {name}", "SEE %s or"]
    expected = ["SEE %s FILES OK", "<b>SEE</b> {name} AND {n} OK", *texts[2:]]
    assert translate_marked(capitals, texts, "text") == expected


def test_what_has_only_spans_is_not_translated():
    shout = Copy(lambda line: line and line.upper() + "!")
    texts = ["https://x.org, %s", "<b>{a}</b>", "1 {n, plural, other {x}}"]
    assert translate_marked(shout, [*texts, "so"], "text") == [*texts, "SO!"]


def test_lost_spans_are_put_back():
    """The text around them is translated by itself, without a new full stop."""
    text = "see https://x.org/a, <keep>Foo  Bar</keep> or {n} of %s"
    loses = Copy(lambda line: re.sub(r"\S*[/{%]\S*|Foo", "", line).upper() + ".")
    expected = "SEE https://x.org/a, Foo  Bar OR {n} OF %s"
    assert translate_marked(loses, [text.replace(",", "")], "text") == [
        expected.replace(",", "")
    ]
    # Also if the model could not generate a name or a number.
    unspelled = Unspelled(loses.change)
    assert translate_marked(unspelled, [text.replace(",", "")], "text") == [
        expected.replace(",", "")
    ]
    doubles = Copy(lambda line: f"{line} {line}" if "@" in line else line)
    assert translate_marked(doubles, ["to a@b.org"], "text") == ["to a@b.org"]


@pytest.mark.parametrize("prefix", [">>eng_Latn fra_Latn<< ", "  >>en fr<< "])
@pytest.mark.parametrize(
    "text",
    [
        "see {n} of <keep>Foo</keep>",
        "see <b>the</b> cat and <i>so</i>",
        "see code_a and `b`",
        "%s",
    ],
)
def test_languages_of_a_text_are_named_in_each_request(text, prefix):
    """Also where tags are taken out, spans are lost, and parts are translated."""

    class Multilingual(Copy):
        def n_best(self, lines, n=1):
            assert all(line.startswith(prefix) for line in lines if line)
            return super().n_best([line.removeprefix(prefix) for line in lines], n)

        def align(self, sources, targets):
            assert all(source.startswith(prefix) for source in sources)
            return [[(k + 2, k) for k, _ in enumerate(t.split())] for t in targets]

    loses = Multilingual(lambda line: re.sub(r"[{}_`%]|<[^>]*>|Foo", "", line).upper())
    kinds = (*PROTECTED, "code")
    found, expected = (
        translate_marked(translator, [line], "text", kinds)
        for translator, line in (
            (loses, prefix + text),
            (Copy(loses.change), text),
        )
    )
    assert found == expected


@pytest.mark.parametrize(
    "text", ["a <keep>b", "a</keep> b", "<keep>a <keep>b</keep></keep>"]
)
def test_keep_needs_a_partner(text):
    with pytest.raises(DataError, match="line 2: <keep> and </keep>"):
        translate_marked(Copy(), ["", text], "text")


def test_tags_without_partner_are_kept_with_a_warning():
    translator = Copy(str.upper)
    texts = ["one <b>two", "one </i> two", "<b>one <i>two</b> three</i>"]
    found = translate_marked(translator, texts, "html")
    assert found == ["ONE <b>TWO", "ONE </i> TWO", "<b>ONE <i>TWO</b> THREE</i>"]
    assert [index for index, _ in translator.warnings] == [0, 1, 2]
    # Also in plain text.
    copying = Copy()
    assert translate_marked(copying, texts, "text") == texts
    assert [index for index, _ in copying.warnings] == [0, 1, 2]


def test_random_markup_stays_balanced():
    """Each tag occurs once, and the tags nest, whatever the words are aligned with."""

    class Shuffle(Copy):
        def align(self, sources, targets):
            return [
                [(draw.randrange(9), i) for i in range(len(each.split()))]
                for each in targets
            ]

    draw = random.Random(3)

    def element(depth):
        parts = [draw.choice(["word", "two words", "{n}", "x.", ""])]
        for _ in range(draw.randrange(3) if depth else 0):
            name = draw.choice("bius")
            parts.append(f'<{name} id="{draw.random()}">{element(depth - 1)}</{name}>')
            parts.append(draw.choice([" and ", " ", f'<x id="{draw.random()}"/>']))
        return "".join(parts)

    class Checker(html.parser.HTMLParser):
        def __init__(self, text):
            super().__init__()
            self.open = []
            self.feed(text)
            assert not self.open

        def handle_starttag(self, tag, attrs):
            self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    texts = [element(3) for _ in range(300)]
    shuffle = lambda words: draw.sample(words, len(words))  # noqa: E731
    translator = Shuffle(lambda line: " ".join(shuffle(line.split())))
    for text, found in zip(texts, translate_marked(translator, texts), strict=True):
        Checker(found)
        tags = re.compile("<[^>]*>")
        assert sorted(tags.findall(found)) == sorted(tags.findall(text))
        assert found.count("{n}") == text.count("{n}")


def test_characters_that_a_model_does_not_know_are_kept():
    translator = Copy(lambda line: re.sub(r"[^\x00-\x7f]+", "", line))
    translator.characters = frozenset(string.ascii_letters)
    texts = ["buy 北京 for £10 now", "caf\u00e9", "R&amp;D for 5&nbsp;&euro; and 北"]
    expected = [texts[0], "caf", texts[2]]
    assert translate_marked(translator, texts, "text") == expected
    # Ligatures are other forms of letters.
    assert translate_marked(translator, ["ﬁrst oﬃce"], "text") == ["first office"]


class Cells(Copy):
    """Translates two sentences, and loses other characters than those of ASCII."""

    characters = frozenset(string.ascii_letters + string.digits + " .")
    text_options = TextOptions(layout=True, sentences=True)

    def n_best(self, lines, n=1):
        known = {"The house": "La maison", "We agree.": "Nous acceptons."}
        texts, gaps, line_of = divide(
            [each.encode() for each in lines], self.text_options
        )
        found = [""] * len(lines)
        for text, gap, index in zip(
            *(x.numpy() for x in (texts, gaps, line_of)), strict=True
        ):
            new = known.get(text.decode(), text.decode())
            found[index] += gap.decode() + re.sub(r"[^\x00-\x7f]+", "", new)
        return super().n_best(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("| The house | £10 | at 5 £ |", "| La maison | £10 | at 5 £ |"),
        ("The house\t£10\tat £ 5", "La maison\t£10\tat £ 5"),
        ("✓ We agree. ☂ At £100. The house", "✓ Nous acceptons. ☂ At £100. La maison"),
        ("- We agree.\n• At £10. + 5", "- Nous acceptons.\n• At £10. + 5"),
        # A message that consists of sentences is not divided.
        ("We agree. {n, plural, other {A. B £}} a", None),
    ],
)
def test_spans_of_a_cell_or_sentence_do_not_change_others(text, expected):
    translator = Cells()
    found = translate_marked(translator, [text], "text")
    assert found == [expected or text.replace("We agree", "Nous acceptons")]
    plural = (0, "{n, plural, ...} is not translated: translate its forms one by one")
    assert translator.warnings == [plural] * text.count("plural")


class Foreign(Copy):
    """Keeps text of other scripts, with a warning, and changes the rest."""

    characters = frozenset(string.ascii_letters + " .")

    def n_best(self, lines, n=1):
        found = super().n_best(lines, n)
        for index, line in enumerate(lines):
            for kept in re.findall("[А-я].*", line):
                message = untranslated_warning(kept, ["Latin"])
                found[index] = add_warning(found[index], message)
        return found


@pytest.mark.parametrize(
    "text",
    [
        "Это не язык.",
        "<b>Это</b> не язык, https://x.org",
        "A cat. Это не язык.",
        "At https://x.org/a. Это не язык.",
    ],
)
def test_other_scripts_have_a_warning(text):
    """Also in a text of nothing else, and where stand-ins hide it in a second try."""
    foreign = Foreign(lambda line: line.replace("/a", ""))
    assert translate_marked(foreign, [text], "text") == [text]
    ((index, warning),) = foreign.warnings
    assert index == 0 and warning.endswith("in this script (Cyrillic).")
