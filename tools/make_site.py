#!/usr/bin/env python3
"""Writes a folder to publish: the project's pages as HTML whose links work without a server, their
pictures, the sources that they link to, and the playground.

    tools/make_site.py FOLDER PLAYGROUND.html SLIDES.html [ADDRESS]

ADDRESS is where the folder will be, as https://name.github.io/jem: a preview needs a whole address.
"""
import html
import os
import re
import shutil
import sys

sys.dont_write_bytecode = True
from support.markdown import convert  # noqa: E402

PAGES = {                                           # what is converted, and its name in the folder
    "README.md": "index.html",
    "examples/README.md": "course.html",
    "examples/lecture.md": "lecture.html",
    "examples/models/README.md": "models.html",
    "examples/models/measured.md": "measured.html",
    "examples/models/recipes.md": "recipes.html",
    "examples/data/README.md": "data.html",
    "tools/README.md": "tools.html",
    "tools/BENCHMARKS.md": "benchmarks.html",
    "tests/README.md": "tests.html",
    ".github/CONTRIBUTING.md": "contributing.html",
}
MENU = [("index.html", "jem.h"), ("course.html", "Course"), ("lecture.html", "Lecture"),
        ("slides.html", "Slides"), ("playground.html", "Playground"),
        ("models.html", "Models"), ("tools.html", "Tools"), ("benchmarks.html", "Benchmarks")]
DESCRIPTION = ("An energy-based model in one C header: it classifies images, generates new ones, and "
               "detects images unlike its training data. With a course and a playground.")
PICTURES = (".png", ".gif", ".jpg", ".svg")
STYLE = """
:root { --paper: #fff; --ink: #1b1d21; --soft: #5b616b; --line: #dcdcd8; --well: #f2f2f0;
  --accent: #1d5fc4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #eceef1; --soft: #a3a9b3;
  --line: #34373d; --well: #22252a; --accent: #82b1ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
header { border-bottom: 1px solid var(--line); }
nav, main, footer { max-width: 1020px; margin: 0 auto; padding: 0 20px; }
nav { display: flex; flex-wrap: wrap; gap: 0 22px; }
nav a { padding: 12px 0; color: var(--soft); text-decoration: none; }
nav a:hover, nav a[aria-current] { color: var(--ink); }
nav a:first-child { font-weight: 650; color: var(--ink); }
main { padding-bottom: 60px; }
main.code { max-width: none; }
footer { padding: 16px 20px 40px; color: var(--soft); border-top: 1px solid var(--line); }
a { color: var(--accent); }
h1 { font-size: 30px; line-height: 1.2; margin: 32px 0 16px; letter-spacing: -.01em; }
h2 { font-size: 24px; line-height: 1.25; margin: 48px 0 12px; }
h3 { font-size: 20px; margin: 36px 0 8px; }
p, ul, ol { margin: 12px 0; max-width: 46em; }
li { margin: 4px 0; }
img { max-width: 100%; height: auto; border-radius: 6px; background: #fff; }
code, pre { font: 16px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { background: var(--well); border-radius: 4px; padding: 1px 4px; overflow-wrap: anywhere; }
pre { background: var(--well); border-radius: 8px; padding: 14px 16px; overflow-x: auto; }
pre code { background: none; padding: 0; overflow-wrap: normal; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 16px; margin: 12px 0; }
th, td { text-align: left; vertical-align: top; padding: 7px 14px 7px 0;
  border-bottom: 1px solid var(--line); }
td code { overflow-wrap: normal; }
.right { text-align: right; }
details { border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px; margin: 12px 0; }
summary { cursor: pointer; font-weight: 600; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
@media print { header, footer { display: none; } main { max-width: none; } }
"""

folder, playground, slides = sys.argv[1:4]
address = sys.argv[4].rstrip("/") + "/" if len(sys.argv) > 4 and sys.argv[4] else ""
os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sources = {}                                        # files shown as pages: path, and name of the page


def write(name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def page(name, title, body, wide=False):
    up = "../" * name.count("/")
    menu = "".join('<a href="%s%s"%s>%s</a>' % (up, at, ' aria-current="page"' if at == name else "",
                                               text) for at, text in MENU)
    write(name, """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<meta name="description" content="%s">
<meta property="og:type" content="website">
<meta property="og:title" content="%s">
<meta property="og:description" content="%s">
<meta property="og:image" content="%spictures/preview.png">
<meta name="twitter:card" content="summary_large_image">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="%sstyle.css">
</head>
<body>
<header><nav aria-label="Pages">%s</nav></header>
<main%s>
%s</main>
<footer>MIT-0 or public domain, at your choice.</footer>
</body>
</html>
""" % (html.escape(title), DESCRIPTION, html.escape(title), DESCRIPTION, address or up, up, menu,
       ' class="code"' if wide else "", body))


def place(path):
    """Returns where a file of the project is in the folder, and sees to it that it gets there."""
    if path in ("build/playground.html", "build/slides.html"):
        return os.path.basename(path)
    if os.path.isdir(path) and os.path.exists(path + "/README.md"):
        path += "/README.md"
    if path in PAGES:
        return PAGES[path]
    if path.endswith(PICTURES):
        name = "pictures/" + os.path.basename(path)
        os.makedirs(os.path.join(folder, "pictures"), exist_ok=True)
        shutil.copyfile(path, os.path.join(folder, name))
        return name
    if not os.path.exists(path):
        sys.exit("make_site: there is no %s" % path)
    sources[path] = "source/%s.html" % path.strip("/.")
    return sources[path]


def link_from(path, name):
    """Returns a function that converts the links of the page at `path`, which becomes `name`."""
    def link(address):
        if re.match(r"[a-z]+:", address) or address.startswith("#"):
            return address
        target, mark, anchor = address.partition("#")
        found = place(os.path.normpath(os.path.join(os.path.dirname(path), target)))
        return os.path.relpath(found, os.path.dirname(name) or ".") + mark + anchor
    return link


def show_source(path, name):
    if os.path.isdir(path):
        items = ""
        for entry in sorted(os.listdir(path)):
            one = os.path.join(path, entry)
            if os.path.isfile(one) and not entry.startswith("."):
                to = os.path.relpath(place(one), os.path.dirname(name))
                items += '<li><a href="%s">%s</a></li>\n' % (html.escape(to), html.escape(entry))
        page(name, path, "<h1>%s</h1>\n<ul>\n%s</ul>\n" % (html.escape(path), items))
        return
    try:
        with open(path, encoding="utf-8") as file:
            text = "<pre><code>%s</code></pre>\n" % html.escape(file.read())
    except UnicodeDecodeError:
        shutil.copyfile(path, os.path.join(folder, "source", os.path.basename(path)))
        up = "../" * (name.count("/") - 1)
        text = '<p><a href="%s%s" download>%d bytes</a></p>\n' % (
            up, html.escape(os.path.basename(path)), os.path.getsize(path))
    page(name, path, "<h1>%s</h1>\n%s" % (html.escape(path), text), True)


def add_playground():
    with open(playground, encoding="utf-8") as file:
        text = file.read()
    shutil.copyfile("examples/gallery/preview.png", os.path.join(folder, "pictures/preview.png"))
    text = text.replace('content="preview.png"', 'content="%spictures/preview.png"' % address)
    course = ' The ideas, one by one: <a href="course.html">the course</a>.'
    text = text.replace('<span id="source">jem.h</span>',
                        '<a href="%s">jem.h</a>' % place("jem.h"), 1)
    text = text.replace('<span id="speed">', course + ' <span id="speed">', 1)
    write("playground.html", text)


def main():
    os.makedirs(os.path.join(folder, "pictures"), exist_ok=True)
    os.makedirs(os.path.join(folder, "source"), exist_ok=True)
    write("style.css", STYLE)
    write(".nojekyll", "")                          # GitHub Pages: take the files as they are
    for path, name in PAGES.items():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        title = re.search(r"^# (.*)", text, re.M)[1]
        body = convert(text, link_from(path, name))
        page(name, "jem.h" if title == "jem.h" else "%s: jem.h" % title, body)
    shown = set()
    while shown < set(sources):
        path = sorted(set(sources) - shown)[0]
        shown.add(path)
        show_source(path, sources[path])
    add_playground()
    shutil.copyfile(slides, os.path.join(folder, "slides.html"))
    print("%s: %d pages, %d sources" % (folder, len(PAGES), len(shown)))


main()
