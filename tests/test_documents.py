"""Documents: which texts are found, and that all other bytes stay the same."""

import html
import io
import json
import random
import re
import zipfile

import pytest
from babel.messages import pofile

from keras_transformer.decoding import Translation
from keras_transformer.decoding.markup import translate_marked
from keras_transformer.documents import Document
from keras_transformer.documents.document import FORMATS
from keras_transformer.errors import DataError

ENTRIES = 500
XLIFF = (
    "<?xml version='1.0'?>\n<xliff version=\"1.2\">\n <file original='word'><body>\n{}"
    " </body></file>\n</xliff>\n"
)
TMX = '<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n{}</body></tmx>'
DOCX = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n'
    '<w:document xmlns:w="w" xmlns:r="r">'
    "<w:body>{}<w:sectPr/></w:body></w:document>"
)


class Replacing:
    """A translator that writes `word` for each "word"."""

    def __init__(self, word):
        self._word = word

    def n_best(self, lines, n=1):
        pattern = re.compile("(<[^>]*>)|word")
        texts = [pattern.sub(lambda one: one[1] or self._word, line) for line in lines]
        return [[Translation(text, 0.0)] for text in texts]

    def warn(self, index, message):
        pass

    def align(self, sources, targets):
        return [[(n, n) for n in range(len(each.split()))] for each in targets]


def texts_of(found, word):
    """Returns the translations of a document's texts by `Replacing`."""
    return translate_marked(Replacing(word), found.texts, found.syntax)


def entries(kind, word, is_filled):
    """Yields random entries, with `word` wherever a translation belongs.

    If `is_filled`, targets beside sources have translations.
    """
    draw = random.Random(1)
    for number in range(ENTRIES):
        words = [draw.choice(["word", "a", "Über", "漢字", "I'm"]) for _ in range(9)]
        source = " ".join(["word", *words[: draw.randint(0, 9)], "word."])
        text = source.replace("word", word)
        target = text if is_filled else ""
        lines = text.replace(" ", "\n", 1)
        indented = text.replace(" ", "\n   \t", 1)
        time = f"00:{number // 60:02}:{number % 60:02}"
        yield {
            "html": draw.choice(
                [
                    f"<p class='word'>{indented}</p>\n",
                    f'<LI>{text} &amp; <a href="word">{word}</a>&nbsp;!\r\n',
                    f"<!-- word --><td><pre>word {number}</pre>\t{text} </td>",
                    f"<script>if (word < 1) '<p>word'</script><div>{text}",
                    f'<p translate="no">word</p><br/>{text}<br>{text}<hr>',
                ]
            ),
            "md": draw.choice(
                [
                    f"# {text}\n\n",
                    f"{lines}\n\n",
                    f"> {lines}\n> {text}\n\n",
                    f"* {text}\n    ```\n    word\n    ```\n\n",
                    f"{number}. {text}  \n   {text}\n\n",
                    f"| {text} | {word} |\n|---|:-:|\n| {word} | {text} |\n\n",
                    f"```word\nword\n```\n\n[{number}]: word 'word'\n\n    word\n\n",
                    f"{text}\n------\n<div>word</div>\n\n",
                ]
            ),
            "srt": f"{number}\r\n{time},000 --> {time},900\r\n{lines}\r\n\r\n",
            "vtt": f"word-{number}\n{time}.000 --> {time}.900 align:word\n{lines}\n\n"
            f"NOTE word\n\n",
            "po": f'# word\n#: word.c:1\nmsgid "{source} \\"\\n"\n'
            f'msgstr {_po_value(target)}\n\nmsgid "done"\nmsgstr "word"\n\n'
            f'msgid "{number} word"\nmsgid_plural "{number}\\\\ word"\n'
            f'msgstr[0] "{f"{number} {word}" * is_filled}"\n'
            f'msgstr[1] "{f"{number}{chr(92) * 2} {word}" * is_filled}"\n\n',
            "xlf": f"  <trans-unit id='word'>\n   <source>{source} &lt;</source>\n"
            + f"   <target>{target} &lt;</target>\n" * is_filled
            + "  <!-- word --></trans-unit>\n"
            f"<trans-unit id='1' ><source>word</source><target state='new'>"
            f"{word if is_filled else 'Old'}</target></trans-unit>\n"
            "<trans-unit id='2' translate='no'><source>word</source></trans-unit>\n",
            "tmx": f'<tu tuid="word"><tuv xml:lang="en"><seg>{source}</seg></tuv>\n'
            f"<tuv xml:lang='de'><seg>{target}</seg></tuv></tu>\n",
            "docx": f'<w:p w:rsidR="word"><w:pPr/><w:r><w:t>{text}</w:t></w:r></w:p>\n'
            f"<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>{word}</w:t></w:r><w:r><w:tab/></w:r>"
            f'<w:r><w:t xml:space="preserve"> {text} </w:t></w:r></w:p>',
            "json": f' "word {number}":\t[{json.dumps(text)}, {number}, null],\n',
        }[kind]


def _po_value(target):
    return f'"{target} \\"\\n"' if target else '""'


def document(kind, word, is_filled):
    """Returns the bytes of a document with `ENTRIES` entries."""
    body = "".join(entries(kind, word, is_filled))
    if kind == "docx":
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
            date = (2020, 1, 2, 3, 4, 6)
            for name, text in (
                ("word/styles.xml", "<word/>"),
                ("word/document.xml", DOCX.format(body)),
            ):
                archive.writestr(zipfile.ZipInfo(name, date), text)
        return written.getvalue()
    frame = {
        "html": "<!DOCTYPE html>\n<html lang=word><title>word</title>{}</html>\n",
        "md": "---\ntitle: word\n---\n{}",
        "vtt": "WEBVTT word\n\n{}",
        "po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n{}',
        "xlf": XLIFF,
        "tmx": TMX,
        "json": '{{\n{} "word": ""}}',
    }.get(kind, "{}")
    text = frame.format(body)
    if kind == "html":
        text = text.replace("<title>word", f"<title>{word}")
    return text.encode()


@pytest.mark.parametrize("kind", sorted(suffix[1:] for suffix in FORMATS))
def test_only_the_texts_of_a_document_change(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(document(kind, "word", is_filled=False))
    found = Document(path)
    assert len(found.texts) >= ENTRIES
    for word in ("word", "Wort"):
        new = found.replace(texts_of(found, word))
        expected = document(kind, word, is_filled=True)
        if kind == "html" and word != "word":
            # Entities and white space may be written in another way.
            new, expected = (
                " ".join(html.unescape(each.decode()).split())
                for each in (new, expected)
            )
        assert new == expected


def translated(name, content, word="Wort"):
    """Returns a document in which `word` replaces each "word", and its texts."""
    data = content if isinstance(content, bytes) else content.encode()
    found = Document(name, data)
    texts = texts_of(found, word)
    return found.replace(texts).decode(), found.texts


SRT = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
UNIT = '<xliff version="2.0"><file><unit><segment{}</segment></unit></file></xliff>'
CASES = {
    # Lines of a paragraph are a text, and lines of a dialogue several.
    "lines.srt": (SRT.format("a word\nor b"), ["a word or b"], "Wort\nor b"),
    "dialogue.srt": (
        SRT.format("- No word!\n- b"),
        ["- No word!", "- b"],
        "Wort!\n- b",
    ),
    # The only break is before a dash, which would begin a list.
    "blank.srt": (
        SRT.format("word\n\na word\nb\n") + "\n" + SRT.format("c"),
        ["word", "a word b", "c"],
        "Wort\n\na Wort\nb\n",
    ),
    "voice.vtt": (
        "WEBVTT\n\n00:01.000 --> 00:02.000\n<v word>a word\n<v.x b>b\n",
        ["a word", "b"],
        "<v word>a Wort\n<v.x b>b\n",
    ),
    "half.json": ('["\\ud83d word", "word"]', ["word"], '["\\ud83d word", "Wort"]'),
    "ruby.xhtml": (
        "<p>a <ruby>word<rt>word</rt></ruby> b",
        ["a <ruby>word<rt>word</rt></ruby> b"],
        "a <ruby>Wort<rt>word</rt></ruby> b",
    ),
    "menu.pot": (
        'msgid "a &word"\nmsgstr ""\n\nmsgid "AT&T &amp; word_a"\nmsgstr ""\n',
        ["a word", "AT&T &amp; word_a"],
        'msgstr "a &Wort"',
    ),
    "empty.html": ("\n", [], "\n"),
    "list.md": ("a word b\n- c d", ["a word b", "c d"], "a Wort b\n- c d"),
    "signs.md": ("word << a\nb >> c", ["word << a b >> c"], "Wort << a\nb >> c"),
    "dash.md": ("aa word\nb - c", ["aa word b - c"], "aa Wort\nb - c"),
    "hard.md": (
        "a word  \n> b\\\nc *d  \ne word*",
        ["a word", "b", "c *d e word*"],
        "a Wort  \n> b\\\nc *d  \ne Wort*",
    ),
    "image.md": ("![a](b) c word", ["![a](b) c word"], "![a](b) c Wort"),
    "last.md": ("c word ![a](b)\n", ["c word ![a](b)"], "c Wort ![a](b)\n"),
    "container.md": (
        ":::tip\na word\nb\n:::\n\n::: info tip\nword\n:::\n",
        ["a word b", "tip", "word"],
        ":::tip\na Wort\nb\n:::\n\n::: info tip\nWort\n:::\n",
    ),
    "admonition.md": (
        '!!! note "a note"\n    a word\n\n    b\n\n    ??? tip\n        c\n\n'
        '=== "note"\r\n\r\n    word\r\n\r\nc\n\n    word',
        ["a note", "a word", "b", "c", "note", "word", "c"],
        "    a Wort\n\n    b",
    ),
    "loud.md": ("!!! a word\nb\n\n> [!TIP]\n> c", ["!!! a word b", "c"], "a Wort\nb"),
    "terms.md": (
        "a word\n: word b\n  c\n:   d\n\ne\n: f\n\n    word",
        ["a word", "word b c", "d", "e", "f", "word"],
        "a Wort\n: Wort b\n  c\n:   d\n\ne\n: f\n\n    Wort",
    ),
    "notes.md": (
        "[^1]: Word.\n[^b]: a word\n    b\n",
        ["Word.", "a word b"],
        "[^1]: Word.\n[^b]: a Wort\n    b\n",
    ),
    "tasks.md": ("- [x] x word\n2. [ ] b", ["x word", "b"], "- [x] x Wort\n2. [ ] b"),
    "module.md": (
        "import a, {b} from 'word'\nexport const word = 1\n\nimport word from b\n\n"
        "```\n: a\n!!! note\n```\n",
        ["import word from b"],
        "const word = 1\n\nimport Wort from b\n\n```\n: a\n!!! note\n```\n",
    ),
    "bar.md": (
        "|a|b|\n|-|-|\n|word \\| c|`d\\|e` f|",
        ["a", "b", "word \\| c", "`d\\|e` f"],
        "|Wort \\| c|`d\\|e` f|",
    ),
    "strike.md": ("~~a word~~ b", ["~~a word~~ b"], "~~a Wort~~ b"),
    "escape.md": (
        r"1\. word. a. \_b\_ a.",
        [r"1\. word. a. \_b\_ a."],
        r"1\. Wort. a. \_b\_ a.",
    ),
    "star.md": ("a * word _ \\* b", ["a * word _ \\* b"], "a * Wort _ \\* b"),
    "note.md": ("[^1]: A[^2] word\nb", ["A[^2] word b"], "[^1]: A[^2] Wort\nb"),
    "inline.html": (
        '<p>a <b translate="no">words</b> word',
        ['a <b translate="no">words</b> word'],
        'a <b translate="no">words</b> Wort',
    ),
    "custom.html": (
        "<p>a <my-b>word</my-b> <label>b</label><br>word",
        ["a <my-b>word</my-b> <label>b</label>", "word"],
        "a <my-b>Wort</my-b> <label>b</label><br>Wort",
    ),
    "class.html": ("<p class=notranslate>word</p><p>word", ["word"], "</p><p>Wort"),
    "plural.json": (
        '["{n, plural, one {# word} other {# a}}"]',
        ["{n, plural, one {# word} other {# a}}"],
        '["{n, plural, one {# word} other {# a}}"]',
    ),
    "broken.html": ("<p>a <b>word<p>b</i>", ["a <b>word", "b</i>"], "<b>Wort<p>b</i>"),
    "hidden.html": ("<pre>word<p>word", ["word", "word"], "<pre>Wort<p>Wort"),
    "old.po": ('msgid "a\\tword"\nmsgstr ""\n', ["a\tword"], 'msgstr "a\\tWort"'),
    "new.xlf": (
        UNIT.format("><source>a word</source><target/>"),
        ["a word"],
        "<target>a Wort</target>",
    ),
    "initial.xlf": (
        UNIT.format(' state="initial"><source>word</source><target>x</target>'),
        ["word"],
        "<target>Wort</target>",
    ),
    "cdata.xlf": (
        UNIT.format("><source><![CDATA[a <b> & word]]></source>"),
        ["a &lt;b&gt; &amp; word"],
        "<target>a &lt;b&gt; &amp; Wort</target>",
    ),
    "entity.xlf": (
        "<!DOCTYPE xliff [<!ENTITY region 'X'>]>"
        + UNIT.format("><source>a &region; &amp; word</source>"),
        ["a <keep>&region;</keep> &amp; word"],
        "<target>a &region; &amp; Wort</target>",
    ),
    "kept.xlf": (
        "<!DOCTYPE xliff [<!ENTITY a 'X'>]>" + UNIT.format("><source>&a; b</source>"),
        ["<keep>&a;</keep> b"],
        "<target>&a; b</target>",
    ),
    "unknown.html": (
        "<p>a <blink>word</blink> <o:p>b</o:p> word</p><center>word</center>word",
        ["a <blink>word</blink> <o:p>b</o:p> word", "word", "word"],
        "<p>a <blink>Wort</blink> <o:p>b</o:p> Wort</p><center>Wort</center>Wort",
    ),
    "prefix.xlf": (
        '<x:xliff xmlns:x="x"><x:trans-unit id="1"><x:source><x:ph>word</x:ph> word'
        "</x:source></x:trans-unit></x:xliff>",
        ["<x:ph>word</x:ph> word"],
        "</x:source><x:target><x:ph>word</x:ph> Wort</x:target>",
    ),
    "no.xlf": (
        '<xliff><!-- <group translate="no"> --><file translate="no"><group><unit>'
        '<segment><source>word</source></segment></unit><unit translate="yes">'
        "<segment><source>a"
        '</source></segment></unit></group><group translate="yes"/></file><file><group '
        "translate='no'><trans-unit><source>word</source></trans-unit></group>"
        "<trans-unit><source>b word</source></trans-unit></file></xliff>",
        ["a", "b word"],
        "<target>b Wort</target>",
    ),
    "empty.tmx": (
        TMX.format("<tu><tuv><seg>word</seg></tuv><tuv><seg/></tuv></tu>"),
        ["word"],
        "<seg>Wort</seg>",
    ),
    "ascii.json": ('["word \\u00e9\\/"]', ["word é/"], '["Wort \\u00e9/"]'),
    "time.json": ('["2024-01-01T00:00:00Z", "word T1"]', ["word T1"], "Wort T1"),
    "keys.json": ('{"word": {"a": "", "b": 1}}', [], '{"word": {"a": "", "b": 1}}'),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_and_places(name):
    content, texts, expected = CASES[name]
    written, found = translated(name, content)
    assert found == texts and expected in written


def test_new_characters_do_not_become_markup():
    content = translated("a.md", "a *word* b < c", "`*<x_y")[0]
    assert content == r"a *\`\*<x\_y* b < c"


def test_attributes_are_translated_on_request():
    page = (
        b'<body title="word"><img alt=\'a "word"\'><p>a <b title="it\'s &lt; word">word'
        b'</b> <img alt=""> c</p><div translate="no" title="word"><i title="word">x</i>'
        b"</div><hr title='word'>"
    )
    assert Document("a.html", page).texts[0].startswith("a <b title")
    document = Document("a.html", page, attributes=True)
    assert [each for each in document.texts if "<" not in each] == [
        *("word", 'a "word"', "it's &lt; word", "word")
    ]
    found = document.replace([each.replace("word", "Wo'rt") for each in document.texts])
    start, rest = found.decode().split("<p>")
    assert start == '<body title="Wo\'rt"><img alt=\'a "Wo&#39;rt"\'>'
    assert rest.startswith('a <b title="it\'s &lt; Wo\'rt">Wo\'rt</b> <img alt=""> c')
    assert rest.endswith(
        '<div translate="no" title="word"><i title="word">x</i></div>'
        "<hr title='Wo&#39;rt'>"
    )


@pytest.mark.parametrize(
    "page",
    [
        """<p data-x='say title="word" now' title="*">a""",
        """<p>a <i data-x='b title="c"' @x="d alt='e'">title="c"</i> <b title="*">f""",
        """<p>a <i translate="no"><i></i><img alt="word"></i> <img ALT='*'>""",
        """<p>a <img translate="no" alt="word"> <b title="*">b</b>""",
        """<p>a <i class="notranslate">b<p>c <img alt="*">""",
        """<!-- <img alt="word"> --><p>a <b title="*">b</b> <i title="*">c</i>""",
    ],
)
def test_only_attributes_are_replaced_each_time(page):
    document = Document("a.html", page.replace("*", "c").encode(), attributes=True)
    assert document.texts.count("c") == page.count("*")
    for new in "de":
        texts = [new if each == "c" else each for each in document.texts]
        assert document.replace(texts).decode() == page.replace("*", new)


def test_only_html_has_attributes():
    with pytest.raises(ValueError, match="needs HTML"):
        Document("a.md", b"", attributes=True)


def test_encodings_are_kept():
    found = Document("a.html", "<meta charset=latin-1><p>ö".encode("latin-1"))
    written = found.replace(["łö"]).decode("latin-1")
    assert found.texts == ["ö"] and written == "<meta charset=latin-1><p>&#322;ö"
    text = TMX.format("<tu><tuv><seg>word</seg></tuv><tuv><seg/></tuv></tu>")
    data = text.encode("utf-16")
    found = Document("a.tmx", data)
    assert found.line_numbers == [3]
    assert found.replace(["łö"]) == text.replace("<seg/>", "<seg>łö</seg>").encode(
        "utf-16"
    )


@pytest.mark.parametrize("name", ["a.po", "a.json"])
def test_encodings_that_lack_a_character_become_utf8(name):
    content = {
        "a.po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\n'
        'msgid "é"\nmsgstr "{}"\n',
        "a.json": '["charset={}", "é{}"]',
    }[name]
    data = content.format("ISO-8859-1", "").encode("latin-1")
    found = Document(name, data)
    texts = [text.replace("é", "éœ") for text in found.texts]
    expected = content.format("UTF-8", "éœ" if name == "a.po" else "œ")
    assert found.replace(texts).decode() == expected
    same = found.replace(found.texts)
    assert same == content.format("ISO-8859-1", "é" * (name == "a.po")).encode(
        "latin-1"
    )


@pytest.mark.parametrize(
    ("message", "translation", "expected"),
    [
        ("Save &as", "Enregistrer sous", "&Enregistrer sous"),
        ("_Open", "Ouvrir", "_Ouvrir"),
        ("Sa&ve", "Sauver", "Sau&ver"),
        ("&Quit now", "Fermer", "&Fermer"),
        ("&Go", "...", "..."),
    ],
)
def test_accelerators_stay_on_a_letter(message, translation, expected):
    found = Document("a.po", f'msgid "{message}"\nmsgstr ""\n'.encode())
    assert found.texts == [message.replace("&", "").replace("_", "")]
    written = found.replace([translation]).decode()
    assert written.endswith(f'msgstr "{expected}"\n')
    assert f'msgstr "{message}"' in found.replace(found.texts).decode()


def test_po_files_as_babel_reads_them():
    plural = '\nmsgid_plural "{0} a"\nmsgstr[0] ""\nmsgstr[1] ""'
    ends = [plural, '\nmsgstr ""']
    source = "".join(
        f'msgid "{number} \\"a\\\\\\n"{ends[number % 2].format(number)}\n\n'
        for number in range(50)
    ).encode()
    found = Document("a.po", source)
    texts = [f'{text}\t"\\n' for text in found.texts]
    messages = list(pofile.read_po(io.BytesIO(found.replace(texts))))[1:]
    for name, expected in (("id", found.texts), ("string", texts)):
        values = [getattr(each, name) for each in messages]
        values = [[each] if isinstance(each, str) else each for each in values]
        assert [text for each in values for text in each] == expected


def test_runs_of_a_docx_move_with_their_words(tmp_path):
    docx = pytest.importorskip("docx", reason="python-docx is not installed")
    written = docx.Document()
    paragraph = written.add_paragraph("a ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" word")
    written.add_table(1, 1).cell(0, 0).text = "cell"
    written.save(tmp_path / "a.docx")
    found = Document(tmp_path / "a.docx")
    assert found.texts == [
        '<g id="0">a </g><g id="1">bold</g><g id="2"> word</g>',
        "cell",
    ]
    assert found.replace(found.texts) == (tmp_path / "a.docx").read_bytes()
    moved = '<g id="1">fett</g> &amp; <g id="0">ein</g><g id="2"> Wort</g>'
    (tmp_path / "b.docx").write_bytes(found.replace([moved, "Zelle"]))
    after = docx.Document(tmp_path / "b.docx")
    runs = [(run.text, run.bold) for run in after.paragraphs[0].runs]
    assert runs == [("fett", True), (" & ein", None), (" Wort", None)]
    assert after.tables[0].cell(0, 0).text == "Zelle"


BOLD = "<w:rPr><w:b/></w:rPr>"


def run(text, form="", inner="<w:t>{}</w:t>"):
    if text != text.strip():
        inner = inner.replace("<w:t>", '<w:t xml:space="preserve">')
    return f"<w:r>{form}{inner.format(text)}</w:r>"


def link(number, text):
    return f'<w:hyperlink r:id="{number}">{run(text, BOLD)}</w:hyperlink>'


def mark(side, number=1):
    return f'<w:bookmark{side} w:id="{number}"/>'


def field(text):
    kinds = ("begin", "separate", "end")
    begin, middle, end = (run("", BOLD, f'<w:fldChar w:type="{x}"/>') for x in kinds)
    code = run("PAGE", "", "<w:instrText>{}</w:instrText>")
    return f"{begin}{code}{middle}{run(text)}{end}"


@pytest.mark.parametrize(
    ("paragraph", "source", "translation", "expected"),
    [
        (
            run("Read ") + link(9, "this") + run(" now."),
            '<g id="0">Read </g><g id="1">this</g><g id="2"> now.</g>',
            '<g id="0">Lis</g> <g id="1">ça</g> <g id="2">là</g>.',
            run("Lis ") + link(9, "ça") + run(" là."),
        ),
        (
            link(1, "a") + run(" b ") + link(2, "c"),
            '<g id="0">a</g><g id="1"> b </g><g id="2">c</g>',
            '<g id="2">C</g> <g id="1">B</g> <g id="0">A</g>.',
            link(2, "C") + run(" B ") + link(1, "A") + run(" ").replace("> <", ">.<"),
        ),
        (
            link(1, "a") + run("."),
            '<g id="0">a</g><g id="1">.</g>',
            '<g id="0">A</g><g id="1"></g>.',
            link(1, "A") + run("."),
        ),
        (
            link(1, "a") + link(2, "b"),
            '<g id="0">a</g><g id="1">b</g>',
            '<g id="1">B</g> x <g id="0"></g>',
            link(2, "B") + link(1, " x "),
        ),
        (
            run("a", '<w:rPr><w:i/></w:rPr>') + mark("Start") + run("b")
            + run("c", BOLD) + mark("End") + run("d"),
            '<g id="0">a</g><g id="1">b</g><g id="2">c</g><g id="3">d</g>',
            '(<g id="2">C</g> <g id="0">A</g><g id="1">B</g> <g id="3">D</g>',
            mark("Start") + run("(C ", BOLD) + run("A", '<w:rPr><w:i/></w:rPr>')
            + run("B ") + mark("End") + run("D"),
        ),
        (
            '<w:ins w:id="1">' + run("a ") + '</w:ins><w:del w:id="2"><w:r><w:delText>x'
            "</w:delText></w:r></w:del><w:moveTo>" + link(1, "b") + "</w:moveTo>",
            '<g id="0">a </g><g id="1">b</g>',
            '<g id="1">B</g> <g id="0">A</g>',
            link(1, "B") + run(" A"),
        ),
        (
            run("See ") + field("3.1") + run(" now."),
            '<g id="0">See </g><g id="1" mtype="protected">3.1</g><g id="2"> now.</g>',
            '<g id="2">Nun</g> <g id="1" mtype="protected">3.1</g> <g id="0">sieh</g>.',
            run("Nun ") + field("3.1") + run(" sieh."),
        ),
        (
            run("a", BOLD) + f'<w:fldSimple w:instr="PAGE">{run("3")}</w:fldSimple>',
            '<g id="0">a</g><g id="1" mtype="protected">3</g>',
            '<g id="0">A</g> x',
            run("A x", BOLD) + f'<w:fldSimple w:instr="PAGE">{run("3")}</w:fldSimple>',
        ),
        (
            run("", "", "<w:t>co</w:t><w:softHyphen/><w:t>mes </w:t>")
            + run("", "", "<w:t>by U</w:t><w:noBreakHyphen/><w:t>boat</w:t>"),
            "comes by U\u2011boat",
            "kommt mit dem U\u2011Boot",
            run("kommt mit dem U\u2011Boot"),
        ),
        (
            '<w:smartTag w:element="City"><w:smartTagPr><w:attr w:name="a"/>'
            "</w:smartTagPr>" + run("London") + "</w:smartTag>" + run(" waits."),
            "London waits.",
            "London wartet.",
            run("London wartet."),
        ),
        (run("a") + field("word") + field("5") + run("b"), "a", "A", None),
        (
            '<w:ins w:id="1">' + run("a") + run("", "", "<w:tab/>") + run("b")
            + "</w:ins>" + run("c"),
            "a",
            "A",
            None,
        ),
        (
            "<w:hyperlink>" + run("", "", "<w:drawing/>") + run("a") + "</w:hyperlink>"
            + run("b", "<w:lastRenderedPageBreak/>"),
            "a",
            "A",
            None,
        ),
    ],
)  # fmt: skip
def test_links_and_bookmarks_of_a_docx(paragraph, source, translation, expected):
    document = Document("a.docx", docx_of(f"<w:p>{paragraph}</w:p>"))
    assert document.texts[0] == source
    assert body_of(document.replace(document.texts)) == f"<w:p>{paragraph}</w:p>"
    written = body_of(document.replace([translation, *document.texts[1:]]))
    expected = expected or paragraph.replace(">a<", ">A<")
    assert written == f"<w:p>{expected}</w:p>"


def docx_of(body):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("word/document.xml", DOCX.format(body))
    return written.getvalue()


def body_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        text = archive.read("word/document.xml").decode()
    return re.search("<w:body>(.*)<w:sectPr/>", text, re.DOTALL)[1]


@pytest.mark.parametrize("gap", ["<w:tab/>", "<w:br/>", '<w:br w:type="page"/>'])
def test_texts_around_a_tab_of_a_docx(gap):
    def paragraph(*texts):
        start, middle, end = texts
        inner = f"<w:t>{start}</w:t>{gap}<w:t>{middle}</w:t>{gap}"
        tail = run(end, BOLD + "<w:lastRenderedPageBreak/>")
        return f"<w:p>{run('', BOLD, gap)}{run('', BOLD, inner)}{tail}</w:p>"

    document = Document("a.docx", docx_of(paragraph("a", "b", "c")))
    assert document.texts == ["a", "b", "c"]
    assert body_of(document.replace(["a", "b", "c"])) == paragraph("a", "b", "c")
    new = body_of(document.replace(["A", "B", "C"]))
    expected = paragraph("A", "B", "C").replace("<w:lastRenderedPageBreak/>", "")
    assert new == expected
    mixed = run("", "", f"<w:t>a</w:t>{gap}<w:t>b</w:t>") + run("c", BOLD)
    document = Document("a.docx", docx_of(mixed + run("", "", f"<w:t>d</w:t>{gap}")))
    assert document.texts[1] == '<g id="0">b</g><g id="1">c</g><g id="2">d</g>'
    turned = '<g id="1">C</g><g id="0">B</g><g id="2">D</g>'
    new = body_of(document.replace(["a", turned]))
    assert new == (
        run("", "", f"<w:t>a</w:t>{gap}") + run("C", BOLD)
        + run("B") + run("", "", f"<w:t>D</w:t>{gap}")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.html", "text", "a.html:1: must be HTML, but has no tag"),
        (
            "a.html",
            "<?xml version='1.0' encoding='odd'?>",
            "a.html:1: unknown encoding",
        ),
        ("a.md", b"a\n\xff", "a.md:2: must be text in utf-8"),
        ("a.xlf", "<a>\n<b></a>", "a.xlf:2: not XML: mismatched tag"),
        ("a.xlf", TMX.format(""), "a.xlf:2: must be <xliff>. Received: <tmx>"),
        ("a.tmx", "{}", "a.tmx:1: not XML: "),
        ("a.docx", "text", "a.docx: cannot be read as .docx (File is not a zip fil"),
        (
            "a.docx",
            "PK\5\6" + "\0" * 18,
            "a.docx: cannot be read as .docx (no word/document.xml)",
        ),
        (
            "a.po",
            'msgid "a"\nmsgstr b',
            "a.po:2: must be a comment, or a string in double quotes, alone or after a "
            "keyword such as msgid. Received: 'msgstr b'",
        ),
        ("a.json", '{\n"a": 1', "a.json:2: not JSON: Expecting ',' delimiter"),
        ("a.srt", "text", "a.srt:1: must be SubRip, but no line has a time"),
        ("a.vtt", SRT.format("a"), "a.vtt:1: must be WEBVTT"),
    ],
)
def test_content_of_another_format_is_an_error(name, content, message):
    data = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(DataError, match=re.escape(message)):
        Document(name, data)
