"""Look at every link of the built site that stays in it: `python docs/_ext/check_links.py docs/_build/html`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        text = path.read_text()
        self.feed(text)
        self.of_this_machine = "site-packages" in text or "\x1b[" in text or "?25l" in text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a link can point to, and what points."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and not value.startswith(("http:", "https:", "mailto:", "data:")):
                self.links.add(value)


def main(folder: Path) -> int:
    """Print the broken links and the number of pages; 1 if there are any."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            to = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            linked = pages.get(to)
            if not to.exists() or (anchor and linked and unquote(anchor) not in linked.ids):
                broken.append(f"{path.relative_to(folder)}: {link}")
    # What a cell printed may name folders of this machine, or move a cursor that a page does not have.
    broken += [f"{path.relative_to(folder)}: an output that is no text for a page" for path, page in pages.items()
               if page.of_this_machine]  # fmt: skip
    print("\n".join(sorted(broken)) + "\n" if broken else "", end="")
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
