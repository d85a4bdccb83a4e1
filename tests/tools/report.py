"""Reads a page of `jem report` strictly: report.py PAGE.html TEXT COMMANDS. Writes
its lines and rows of tables to TEXT, the commands that it shows to COMMANDS. Says what is wrong
with it, and exits with 1 if something is."""
import base64
import html.parser
import struct
import sys
import zlib

VOID = {"meta", "img"}
KNOWN = VOID | set("html head title style body main h1 h2 p nav a section div table tr th td "
                   "figure figcaption code ul li footer".split())


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.lines, self.commands = [], [], [], []
        self.ids, self.links, self.pictures, self.text, self.row = [], [], 0, "", []

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag not in KNOWN:
            self.wrong.append(f"<{tag}>")
        self.ids += [a["id"]] if "id" in a else []
        if tag == "a":
            self.links.append(a["href"])
        elif "href" in a or ("src" in a and tag != "img"):
            self.wrong.append(f"<{tag}> refers to something")
        if tag == "img":
            self.picture(a)
        if tag not in VOID:
            self.open.append(tag)
        if tag not in ("code", "a"):
            self.text = ""

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> out of place")
        if tag in ("th", "td"):
            self.row.append(self.text)
        elif tag == "tr":
            self.lines.append(" ".join(cell for cell in self.row if cell))
            self.row = []
        elif tag in ("title", "h1", "h2", "p", "li", "figcaption", "footer"):
            self.lines.append(self.text)
        elif tag == "code":
            self.commands.append(self.text)

    def handle_data(self, data):
        self.text += data

    def picture(self, a):
        """A whole PNG, of the size that the page reserves."""
        kind, _, data = a["src"].partition(",")
        png, pixels, at, shape = base64.b64decode(data, validate=True), b"", 8, ()
        ok = kind == "data:image/png;base64" and png[:8] == b"\x89PNG\r\n\x1a\n" and a["alt"]
        while ok and at < len(png):
            size, = struct.unpack(">I", png[at:at + 4])
            name, body = png[at + 4:at + 8], png[at + 8:at + 8 + size]
            crc, = struct.unpack(">I", png[at + 8 + size:at + 12 + size])
            ok, at = crc == zlib.crc32(name + body), at + 12 + size
            shape = struct.unpack(">II", body[:8]) if name == b"IHDR" else shape
            pixels += body if name == b"IDAT" else b""
        if not ok or shape != (int(a["width"]), int(a["height"])) or not zlib.decompress(pixels):
            self.wrong.append("a picture is damaged")
        self.pictures += 1


def main(path, text, commands):
    page = Page()
    with open(path, encoding="utf-8") as file:
        whole = file.read()
    page.feed(whole)
    page.close()
    if not whole.startswith("<!DOCTYPE html>") or page.open:
        page.wrong.append(f"not closed: {page.open}")
    if sorted("#" + name for name in page.ids) != sorted(page.links):
        page.wrong.append(f"contents {page.links} of {page.ids}")
    with open(text, "w", encoding="utf-8") as file:
        file.write("".join(" ".join(line.split()) + "\n" for line in page.lines))
    with open(commands, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in page.commands))
    print(f"{page.pictures} pictures, {len(page.ids)} sections")
    for wrong in page.wrong:
        print(f"{path}: {wrong}")
    return 1 if page.wrong else 0


sys.exit(main(*sys.argv[1:]))
