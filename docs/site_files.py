"""MkDocs hooks: files outside of docs/, and the package for mkdocstrings.

Pages link to files outside of docs/ by paths that work in the repository. On the site
these links lead to copies.
"""

import pathlib
import posixpath
import re
import shutil

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?:\.\./)+([^)#\s]+)")
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
API_LINE = re.compile(
    r"^- \[`(keras_transformer\.[\w.]+)`\]\(\S+\): .*$(?:\n +- .*$)*", re.MULTILINE
)
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(\S+)">'
    r'\s*<img alt="(.*?)" src="(\S+)">\s*</picture>'
)


def on_startup(command, dirty):
    """Copies the package with its pipelines inside, as it is when installed."""
    package = ROOT / "build" / "reference" / "keras_transformer"
    shutil.rmtree(package, ignore_errors=True)
    only_code = shutil.ignore_patterns("__pycache__")
    # A copy instead of a link, because mkdocstrings does not follow links to folders.
    shutil.copytree(ROOT / "keras_transformer", package, ignore=only_code)
    shutil.copytree(
        ROOT / "pipelines", package / "pipelines", ignore=only_code, dirs_exist_ok=True
    )


def is_outside(match, path):
    """Returns whether a link leaves docs/. `path` is the page's path within docs/."""
    return match[0].count("../") > len(pathlib.PurePosixPath(path).parts) - 1


def on_files(files, config):
    """Adds the files outside of docs/ that pages link to."""
    pages = list(files.documentation_pages())
    added = set()
    for page in pages:
        place = page.src_uri if page.src_uri in added else f"docs/{page.src_uri}"
        for match in RELATIVE.finditer(API_LINE.sub("", page.content_string)):
            path = posixpath.normpath(f"{posixpath.dirname(place)}/{match[1]}")
            if path in added or path.startswith("docs/"):
                continue
            added.add(path)
            file = File.generated(config, path, abs_src_path=str(ROOT / path))
            files.append(file)
            if path.endswith(".md"):
                pages.append(file)  # Its links are followed, too.
    return files


def api_directive(match):
    """Returns the directive for an entry. Of a module, it shows what the entry has."""
    names = re.findall(r"^  - `(\w+)", match[0], re.MULTILINE)
    is_class = match[1].rpartition(".")[2][0].isupper()
    options = "" if is_class else f"\n    options:\n      members: {names}"
    return f"::: {match[1]}{options}"


def on_page_markdown(markdown, page, config, files):
    """Adapts pictures, the API and links.

    The theme shows the picture for the mode that the reader chose on the site. Entries
    of the API become docstrings. Links that leave docs/, the site's root, lose one
    `../`.
    """
    path = page.file.src_uri
    markdown = API_LINE.sub(api_directive, markdown)
    markdown = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    return LINK.sub(
        lambda match: (
            match[0].removeprefix("../") if is_outside(match, path) else match[0]
        ),
        markdown,
    )
