#!/usr/bin/env python3
"""Checks a folder that `make site` has built: every link and picture leads to a file of the folder,
every anchor to an element, and no Markdown is left in the pages.
    test_site.py FOLDER          the last line is: N passed, N failed"""
import html.parser
import os
import re
import sys
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from checks import check, finish  # noqa: E402

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Reader(html.parser.HTMLParser):
    """Collects links, anchors and the text outside of code; checks that tags close in order."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors, self.open = [], set(), []
        self.text, self.wrong, self.title = "", [], ""

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            if given["id"] in self.anchors:
                self.wrong.append("two elements have the id " + given["id"])
            self.anchors.add(given["id"])
        for name in ("href", "src"):
            if name in given:
                self.links.append(given[name])
        if tag == "img" and not given.get("alt"):
            self.wrong.append("a picture without alt: %s" % given.get("src"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append("</%s> at %s" % (tag, self.getpos()))

    def handle_data(self, data):
        if "title" in self.open:
            self.title += data
        elif not {"code", "pre", "script", "style"} & set(self.open):
            self.text += data


def main(folder):
    pages = {}

    def holds(what, ok, seen=""):
        check(ok, "%s: %s" % (what, seen))

    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".html") and name not in ("playground.html", "slides.html"):
                full = os.path.normpath(os.path.join(path, name))
                reader = Reader()
                with open(full, encoding="utf-8") as file:
                    reader.feed(file.read())
                pages[full] = reader
    for path, reader in sorted(pages.items()):
        holds(path + ": elements close", not reader.open and not reader.wrong,
              "; ".join(reader.wrong + reader.open)[:300])
        left = re.search(r"\*\*|\]\(|^#+ |```|\0|^ *\| ", reader.text, re.M)
        holds(path + ": no Markdown is left", not left,
              left and repr(reader.text[max(left.start() - 40, 0):left.end() + 40]))
        holds(path + ": a title", reader.title, "none")
        lost = []
        for link in reader.links:
            address, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(
                address))) if address else path
            if not os.path.isfile(target):
                lost.append(link)
            elif anchor and target in pages and anchor not in pages[target].anchors:
                lost.append(link)
        holds(path + ": its links lead somewhere", not lost, " ".join(lost)[:300])
    for name in ("index.html", "course.html", "playground.html", "pictures/preview.png"):
        holds(name, os.path.exists(os.path.join(folder, name)), "is not there")
    with open(os.path.join(folder, "playground.html"), encoding="utf-8") as file:
        links = set(re.findall(r'<a href="([^":]*)"', file.read()))
    holds("the playground leads to its source and to the course", len(links) == 2 and all(
        os.path.isfile(os.path.join(folder, link)) for link in links), " ".join(sorted(links)))
    course = pages.get(os.path.normpath(os.path.join(folder, "course.html")))
    panels = {link.split("#")[1].split("?")[0] for link in course.links
              if link.startswith("playground.html#")} if course else set()
    holds("the course leads into panels", {"draw", "dream", "fool", "walk", "plane"} <= panels,
          " ".join(sorted(panels)))
    finish()


main(sys.argv[1])
