"""Checks the links inside a directory of HTML pages: python3 links.py DIRECTORY.

A link must lead to a file in the directory, and its fragment to an id on that page. Links to other sites are not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update(values[name] for name in ("id", "name") if values.get(name))
        self.links.extend(values[name] for name in ("href", "src") if values.get(name))


def main():
    root = Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    checked, broken = 0, []
    for path, page in pages.items():
        # The page for unknown addresses names its files from the root of the site.
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not target.is_file():
                broken.append(f"{path.relative_to(root)}: {link} leads to no file")
            elif fragment and target in pages and fragment not in pages[target].ids:
                broken.append(f"{path.relative_to(root)}: {link} leads to no id")
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {checked} links inside the book, {len(broken)} broken")
    sys.exit(1 if broken or not checked else 0)


main()
