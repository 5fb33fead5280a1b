"""MkDocs hooks: pictures, and files outside of docs/.

Pages link to files outside of docs/ by paths that work in the repository. On the site
these links lead to copies.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?:\.\./)+([^)#\s]+)")
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(\S+)">'
    r'\s*<img alt="(.*?)" src="(\S+)">\s*</picture>'
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
        for match in RELATIVE.finditer(page.content_string):
            path = posixpath.normpath(f"{posixpath.dirname(place)}/{match[1]}")
            if path in added or path.startswith("docs/"):
                continue
            added.add(path)
            file = File.generated(config, path, abs_src_path=str(ROOT / path))
            files.append(file)
            if path.endswith(".md"):
                pages.append(file)  # Its links are followed, too.
    return files


def on_page_markdown(markdown, page, config, files):
    """Adapts pictures and links.

    The theme shows the picture for the mode that the reader chose on the site. Links
    that leave docs/, the site's root, lose one `../`.
    """
    path = page.file.src_uri
    markdown = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    return LINK.sub(
        lambda match: (
            match[0].removeprefix("../") if is_outside(match, path) else match[0]
        ),
        markdown,
    )
