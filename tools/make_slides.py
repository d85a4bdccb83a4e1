#!/usr/bin/env python3
"""Writes the slides of a lecture: one HTML file, made of the lessons' own text and pictures. A slide
has one picture, one formula and one question, whose answer is folded; it links to the playground,
which it expects beside it.

    tools/make_slides.py SLIDES.html
"""
import base64
import html
import json
import os
import re
import sys
import zlib

sys.dont_write_bytecode = True
from support.markdown import convert, inline  # noqa: E402

COURSE = "examples/README.md"
# The order of a lecture, in minutes (examples/lecture.md). The rest follows as further slides.
PARTS = [
    ("Hook", 10, ["glance"]),
    ("Energy", 15, ["three_densities"]),
    ("Walk", 20, ["own_energy", "samplers"]),
    ("Learn", 20, ["learn", "film", "score"]),
    ("A JEM", 15, ["tiny_jem", "worlds"]),
    ("Break it, and mend it", 10, ["break_it", "mend_it"]),
    ("Further", 0, ["autograd", "attack", "compose", "compose_nets"]),
]
# The titles of slides whose lesson has several, or a long title; the others have the lesson's.
TITLES = {
    "samplers": ["Five samplers"],
    "learn": ["Learning", "Learning from short chains"],
    "film": ["Density and samples during training"],
    "worlds": ["A JEM in the plane"],
    "break_it": ["Break it"],
    "mend_it": ["Mend it"],
    "attack": ["Attack it"],
    "compose": ["Compose densities"],
    "compose_nets": ["Compose two networks", "Clear, but strange"],
}
WIDE = 2                                            # pictures wider than this are above the text
BROAD = 1.25                                        # .. than this have more than half of the slide
LONG = 500                                          # .. unless the formula has this many letters


def playground_only(address):
    """Leaves links to the playground and to other sites; a slide has no other pages beside it."""
    if "playground.html" in address:
        return "playground.html" + address[address.index("playground.html") + 15:]
    return address if re.match(r"https?:", address) else ""


def markdown(text):
    return re.sub(r'<a href="">(.*?)</a>', r"\1", convert(text, playground_only), flags=re.S)


def chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + \
        zlib.crc32(kind + data).to_bytes(4, "big")


def film_packed(data):
    """Compresses the frames of a film again: zlib makes them a quarter smaller."""
    out, pixels, kind, first, at = data[:8], b"", b"", b"", 8
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at:at + 4], "big")
        name, body, at = data[at + 4:at + 8], data[at + 8:end], end + 4
        if name in (b"IDAT", b"fdAT"):
            if not pixels:
                kind, first = name, body[:4] if name == b"fdAT" else b""
            pixels += body[len(first):]
            continue
        if pixels:                                  # a frame has ended
            out += chunk(kind, first + zlib.compress(zlib.decompress(pixels), 9))
            pixels = b""
        out += chunk(name, body)
    return out


def picture(path):
    """Returns the picture as a data address, its width and its height."""
    with open(path, "rb") as file:
        data = file.read()
    if b"acTL" in data[:60]:
        data = film_packed(data)
    size = [int.from_bytes(data[at:at + 4], "big") for at in (16, 20)]
    return "data:image/png;base64," + base64.b64encode(data).decode(), size[0], size[1]


def source_formula(program):
    """Returns the lines under FORMULA in a lesson's source, or the indented ones of its comment."""
    with open("examples/%s.c" % program, encoding="utf-8") as file:
        top = file.read().split("*/")[0].split("\n")
    found = []
    for line in top:
        if line.startswith("   FORMULA"):
            found = [line[13:]]
        elif found and re.match(r"   [A-Z]{3}", line):
            break
        elif found:
            found.append(line[13:])
    if not found:
        for line in top:
            if line.startswith("       ") and "build/" not in line:
                found.append(line[7:])
            elif found:
                break
    return "\n".join(found).strip("\n")


def formula(text):
    """Converts a formula: rows with two columns if a gap separates them, joined lines otherwise."""
    lines = text.split("\n")
    if "+---" in text:
        return '<pre class="drawing">%s</pre>' % html.escape(text)
    rows = []
    for line in lines:
        parts = re.split(r"(?<=[^\s,])\s{3,}(?=\S)", line.strip(), maxsplit=1)
        if len(parts) == 1:                         # a label: two spaces are enough
            label = re.match(r"([\w-]+(?: [\w-]+)?)\s\s+(.*)", line.strip())
            parts = list(label.groups()) if label else parts
        begins = re.match(r"[^.;]{1,24}(?: = |: )", line.strip())
        if not line.strip():
            continue
        if len(parts) == 2:                         # a sentence or a reference below it is a row
            rows.append(parts)
            indent = line[:len(line) - len(line.lstrip())]
        elif rows and not begins and not (len(rows[-1]) == 2 and (
                rows[-1][1].endswith(".") or re.match(indent + r"[('A-Z]", line))):
            rows[-1][-1] += " " + line.strip()
        else:
            rows.append([re.sub(r",\s+", ", ", line.strip())])
    out = ""
    for row in rows:
        if len(row) == 2:
            out += "<dt>%s</dt><dd>%s</dd>\n" % tuple(html.escape(part) for part in row)
        else:
            kind = "whole prose" if len(row[0]) > 80 else "whole"
            out += '<dt class="%s">%s</dt>\n' % (kind, html.escape(row[0]))
    return "<dl>\n%s</dl>" % out


def lessons():
    """Reads the course: for each picture its lesson, program, formulas, questions and links."""
    with open(COURSE, encoding="utf-8") as file:
        text = file.read()
    text = text[text.index("\n## A course\n"):]
    text = text[:text.index("\n## A network of your own")]
    units = {}
    for section in re.split(r"^### ", text, flags=re.M)[1:]:
        title = section.split("\n", 1)[0]
        pieces = re.split(r"^(!\[[^\]]*\]\([^)]*\))$", section, flags=re.M)
        for k in range(1, len(pieces), 2):
            before, after = pieces[k - 1], pieces[k + 1]
            if k > 1:                               # what precedes it, after the last answer or link
                before = re.split(r"</details>|^\*Try it:\*", before, flags=re.M)[-1]
            alt, path = re.match(r"!\[([^\]]*)\]\(([^)]*)\)", pieces[k]).groups()
            program = re.findall(r"make build/(\w+)", before)[-1]
            blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", before, re.M)
            blocks = [block.strip("\n") for block in blocks]
            blocks = [re.sub(r"^    ", "", block, flags=re.M) for block in blocks
                      if block.strip() and "make build" not in block]
            asked = re.findall(r"^\*Question:\*(.*?)\n\n<details><summary>Answer</summary>(.*?)"
                               r"</details>", after, re.M | re.S)
            tries = re.findall(r"^\*Try it:\*(.*?)(?:\n\n|\Z)", after, re.M | re.S)
            links = [link for one in tries for link in
                     re.findall(r"\[([^\]]*)\]\(([^)]*)\)", one)]
            film = re.search(r"^\[A film\]\(([^)]*)\)([^.]*\.)", before + after, re.M)
            units[program] = {
                "lesson": title.strip(), "alt": alt, "path": os.path.join("examples", path),
                "formulas": blocks or [source_formula(program)], "asked": asked, "links": links,
                "film": os.path.join("examples", film.group(1)) if film else None,
                "film_alt": film and film_text(film.group(2))}
    return units


def film_text(text):
    """Leaves out the program that made the film."""
    return "A film " + re.sub(r" \(`[^`]*`\)|\.$", "", " ".join(text.split()))


def name(path):
    return os.path.splitext(os.path.basename(path))[0]


def sentence(text):
    """Begins with a capital, except for a formula."""
    text = text.strip()
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ ,]", text) else text


def title_of(unit, program, k):
    if program in TITLES:
        if k >= len(TITLES[program]):
            sys.exit("make_slides: %s has more questions than titles" % program)
        return TITLES[program][k]
    return re.sub(r"^(\d+)\. ", "", unit["lesson"])


def slide(part, minutes, unit, program, k):
    """The first of two questions has the film in place of the picture, if there is one."""
    moving = unit["film"] and k == 0 and len(unit["asked"]) > 1
    data, width, height = picture(unit["film"] if moving else unit["path"])
    alt = html.escape(unit["film_alt"] if moving else unit["alt"])
    question, answer = unit["asked"][k] if unit["asked"] else ("", "")
    formulas = unit["formulas"]
    given = formulas[min(k, len(formulas) - 1)]
    broad = width > BROAD * height and len(given) < LONG
    shape = "wide" if width > WIDE * height else "broad tall" if broad else "tall"
    links = "".join('<a class="live" href="%s">%s</a>' % (html.escape(playground_only(to)),
                                                        inline(text, str))
                    for text, to in (unit["links"] if k == 0 else []))
    if unit["film"]:
        links = '<button class="film" data-film="%s">Film</button>' % name(unit["film"]) + links
    return """<section class="%s" data-program="%s">
<p class="part"><span>%s</span><span>%s</span></p>
<h2>%s</h2>
<figure><button class="zoom" aria-label="Enlarge the picture"><img src="%s" width="%d" height="%d"
alt="%s"></button>
<figcaption aria-hidden="true">%s</figcaption></figure>
<div class="text">
<div class="formula">%s</div>
<p class="question">%s</p>
<p class="links">%s</p>
%s
</div>
</section>
""" % (shape, program, part, minutes,
       inline(title_of(unit, program, k), playground_only), data, width, height, alt, alt,
       formula(given),
       inline(sentence(question), playground_only), links,
       "<details><summary>Answer</summary>%s</details>" % markdown(answer) if answer else "")


def deck(units):
    slides, titles, at = [], [], 0
    for part, minutes, programs in PARTS:
        when = "%d&ndash;%d min" % (at, at + minutes) if minutes else "for questions"
        at += minutes
        for program in programs:
            unit = units[program]
            for k in range(max(1, len(unit["asked"]))):
                slides.append(slide(html.escape(part), when, unit, program, k))
                titles.append(title_of(unit, program, k))
    missing = set(units) - {program for _, _, programs in PARTS for program in programs}
    if missing:
        sys.exit("make_slides: no part has the lesson %s" % ", ".join(sorted(missing)))
    twice = {title for title in titles if titles.count(title) > 1}
    if twice:
        sys.exit("make_slides: two slides have the title %s" % ", ".join(sorted(twice)))
    return slides


STYLE = """
:root { --paper: #fff; --ink: #1b1d21; --soft: #5b616b; --line: #dcdcd8; --well: #f2f2f0;
  --accent: #1d5fc4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #eceef1; --soft: #a3a9b3;
  --line: #34373d; --well: #22252a; --accent: #82b1ff; } }
* { box-sizing: border-box; }
html { font-size: clamp(16px, 1.4vw, 28px); -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.4 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
section { display: none; min-height: 100vh; padding: 1.2rem 2rem 3.6rem; gap: 0 2rem;
  grid-template: auto auto 1fr / 1fr 1fr; align-items: start; }
section.shown { display: grid; }
section.wide { grid-template: auto auto auto 1fr / 1fr; }
section.broad { grid-template-columns: 3fr 2fr; }
.zoom { display: contents; }
.zoom img { cursor: zoom-in; }
#large { position: fixed; inset: 0; padding-bottom: 49px; overflow: auto; background: #fff; cursor: zoom-out; }
#large img { display: block; margin: 0 auto; border-radius: 0; max-height: none; }
.part { grid-column: 1 / -1; display: flex; justify-content: space-between; margin: 0;
  color: var(--soft); }
h2 { grid-column: 1 / -1; font-size: 1.7rem; line-height: 1.2; margin: 0 0 .8rem;
  letter-spacing: -.01em; }
img { max-width: 100%; height: auto; border-radius: 6px; background: #fff; }
figure { margin: 0; min-width: 0; text-align: center; }
figure img { display: block; margin: 0 auto; width: auto; }
figcaption { font-size: max(16px, .8rem); line-height: 1.25; color: var(--soft);
  margin: .3rem 0 .8rem; }
.tall img { max-height: calc(100vh - 10rem - 3 * max(20px, 1rem)); }
.wide img { max-height: 33vh; }
.wide .text { display: grid; grid-template: auto auto 1fr / 11fr 9fr; gap: 0 2rem;
  align-content: start; }
.wide .formula { grid-row: 1 / 4; align-self: start; }
.wide .text details { align-self: start; }
.formula { background: var(--well); border-radius: 8px; padding: .6rem .9rem; }
dl { margin: 0; display: grid; grid-template-columns: fit-content(60%) 1fr; gap: .2rem 1rem; }
dt { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: max(16px, .85rem); }
dt.whole { grid-column: 1 / -1; }
dt.prose { font: inherit; font-size: max(16px, .9rem); }
dd { margin: 0; color: var(--soft); font-size: max(16px, .85rem); }
.drawing { margin: 0; font: max(16px, .8rem)/1.3 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono",
  monospace; overflow-x: auto; }
.question { font-size: 1.25rem; line-height: 1.35; margin: .8rem 0; }
.wide .question { margin-top: 0; }
details { scroll-margin-bottom: 4rem; border: 1px solid var(--line); border-radius: 8px; padding: .3rem .8rem; }
details p { margin: .4rem 0; }
summary { cursor: pointer; font-weight: 600; }
code { background: var(--well); border-radius: 4px; padding: 0 4px; }
.links { display: flex; flex-wrap: wrap; align-items: center; gap: .3rem 1rem; margin: 0 0 .7rem; }
.links:empty { display: none; }
a { color: var(--accent); }
.first { align-content: center; }
section.first { grid-template: auto / 1fr; }
h1 { font-size: 2.6rem; line-height: 1.1; margin: 0 0 1rem; letter-spacing: -.02em; }
.first ol { margin: 1rem 0; padding-left: 1.4em; }
#bar { position: fixed; left: 0; right: 0; bottom: 0; display: flex; gap: 12px; align-items: center;
  padding: 6px 2rem; background: var(--paper); border-top: 1px solid var(--line); color: var(--soft); }
button { font: inherit; font-size: 16px; color: var(--ink); background: var(--paper);
  min-height: 36px; border: 1px solid var(--line); border-radius: 7px; padding: 2px 14px;
  cursor: pointer; }
#live { position: fixed; inset: 0 0 49px; background: var(--paper); }
#live iframe { width: 100%; height: 100%; border: 0; }
[hidden] { display: none !important; }
.film { min-height: 28px; padding: 0 12px; }
#bar .keys { margin-left: auto; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
@media screen and (min-width: 901px) {                /* see fit() */
  .tight1 .question { font-size: 1.1rem; margin: .5rem 0; }
  .tight1.wide .question { margin-top: 0; }
  .tight1.wide img { max-height: 28vh; }
  section.tight2.tall { grid-template-columns: 9fr 11fr; }
  section.tight2.broad { grid-template-columns: 1fr 1fr; }
  .tight2 .question { font-size: 1rem; }
  .tight2.wide img { max-height: 24vh; }
  .tight3 details { font-size: max(16px, .9rem); line-height: 1.3; }
  .tight3 .links { margin-bottom: .4rem; }
}
@media (max-width: 900px) {
  section, section.wide { grid-template: auto / minmax(0, 1fr); padding: 1rem 1rem 5rem; }
  section.first, section.broad { grid-template: auto / minmax(0, 1fr); }
  .tall img, .wide img { max-height: none; }
  .wide .text { display: block; }
  .wide .question { margin-top: .8rem; }
  dl { grid-template-columns: minmax(0, 1fr); }
  dd { padding-left: 1.5em; }
  #bar { padding: 6px 1rem; }
  #bar .keys { display: none; }
}
@media print {
  @page { size: 320mm 180mm; margin: 8mm; }
  :root { --paper: #fff; --ink: #1b1d21; --soft: #5b616b; --line: #dcdcd8; --well: #f2f2f0; }
  html { font-size: 15px; }
  section { display: grid; min-height: 0; height: 162mm; padding: 0; break-after: page;
    break-inside: avoid; overflow: hidden; }
  .text:has(details[open]) { zoom: .88; }
  .tall img { max-height: 128mm; }
  .wide img { max-height: 70mm; }
  #bar, #live, #large, .links { display: none !important; }
}
"""

SCRIPT = """
"use strict";
const all = [...document.querySelectorAll("section")], live = document.getElementById("live");
const large = document.getElementById("large");
const films = JSON.parse(document.getElementById("films").textContent);
let now = 0;
function close() {
  live.hidden = large.hidden = true, live.replaceChildren(), large.replaceChildren();
}
/* The picture at the width of the window; it scrolls if it is higher. */
function enlarge() {
  const picture = all[now].querySelector("img");
  if (picture) lay(picture.cloneNode(), picture.naturalWidth, picture.naturalHeight);
}
/* The film of the slide, from its beginning: an address of its own restarts it. */
async function play() {
  const button = all[now].querySelector(".film"), film = new Image();
  if (!button) return;
  const bytes = Uint8Array.from(atob(films[button.dataset.film].split(",")[1]), (c) => c.charCodeAt(0));
  film.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" })), film.alt = "A film";
  await film.decode();
  lay(film, film.naturalWidth, film.naturalHeight, true);
}
function lay(copy, w, h, whole) {
  const bar = document.getElementById("bar").offsetHeight;
  const fits = Math.min(innerWidth / w, (innerHeight - bar) / h);
  const narrow = !whole && fits * w < .75 * innerWidth;
  copy.style.width = Math.round(w * (narrow ? innerWidth / w : fits)) + "px";
  large.replaceChildren(copy), large.hidden = false, large.scrollTo(0, 0);
}
function show(k) {
  now = Math.max(0, Math.min(all.length - 1, k));
  close();
  all.forEach((s, i) => s.classList.toggle("shown", i === now));
  document.getElementById("count").textContent = `${now + 1} / ${all.length}`;
  history.replaceState(null, "", "#" + (now + 1));
  fit(), scrollTo(0, 0);
}
/* An open answer needs room: the question and the picture become smaller, as far as necessary. */
function fit() {
  const tight = ["tight1", "tight2", "tight3"], list = all[now].classList;
  list.remove(...tight);
  for (const step of tight) {
    if (document.documentElement.scrollHeight <= innerHeight) break;
    list.add(step);
  }
}
function embed(link) {
  const frame = document.createElement("iframe"), [page, state] = link.getAttribute("href").split("#");
  frame.src = page + "?present#" + state, frame.title = link.textContent;
  live.replaceChildren(frame), live.hidden = false;
}
function answer() {
  const d = all[now].querySelector("details");
  if (!d) return;
  d.open = !d.open;
  fit(), d.scrollIntoView({ block: "nearest" });
}
document.querySelectorAll("a.live").forEach((link) => link.onclick = (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault(), embed(link);
});
document.querySelectorAll(".zoom").forEach((button) => button.onclick = enlarge);
document.querySelectorAll(".film").forEach((button) => button.onclick = play);
document.querySelectorAll("details").forEach((d) => d.ontoggle = fit);
large.onclick = close, window.onresize = fit;
document.getElementById("back").onclick = () => show(now - 1);
document.getElementById("on").onclick = () => show(now + 1);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const to = { ArrowRight: now + 1, PageDown: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1,
    PageUp: now - 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[event.key];
  const key = event.key.toLowerCase(), link = all[now].querySelector("a.live");
  if (!large.hidden && /^(Arrow|Page)/.test(event.key)) {
    event.preventDefault();
    large.scrollBy(0, (/Up|Left/.test(event.key) ? -.8 : .8) * innerHeight);
    return;
  }
  if (event.key === "Escape") close();
  else if (key === "z") if (large.hidden) enlarge(); else close();
  else if (key === "f") if (large.hidden) play(); else close();
  else if (key === "a") answer();
  else if (key === "l" && link) if (live.hidden) embed(link); else close();
  else if (to === undefined) return;
  else event.preventDefault(), show(to);
});
addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1 || 0));
show(Number(location.hash.slice(1)) - 1 || 0);
document.body.dataset.ready = 1;
"""


def main(path):
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    units = lessons()
    slides = deck(units)
    films = {name(unit["film"]): picture(unit["film"])[0]
             for unit in units.values() if unit["film"]}
    contents = "".join("<li>%s, %d minutes</li>" % (html.escape(part), minutes)
                       for part, minutes, _ in PARTS if minutes)
    first = """<section class="first"><div>
<h1>A classifier that knows what it has not seen</h1>
<p class="question">One network, two answers: which class is it, and is it like known images?</p>
<ol>%s</ol>
<p class="links"><a class="live" href="playground.html#draw">Draw a digit, then a face</a></p>
</div></section>
""" % contents
    with open(path, "w", encoding="utf-8") as file:
        file.write("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>jem.h: slides</title>
<meta name="description" content="A lecture of 90 minutes on energy-based models.">
<link rel="icon" href="data:,">
<style>%s</style>
</head>
<body>
%s%s<div id="live" hidden></div>
<div id="large" hidden></div>
<nav id="bar" aria-label="Slides"><button id="back">Back</button><button id="on">Next</button>
<span id="count" aria-live="polite"></span>
<span class="keys">arrow keys; A: answer; Z: large picture; F: film; L: live; Esc: back</span></nav>
<script type="application/json" id="films">%s</script>
<script>%s</script>
</body>
</html>
""" % (STYLE, first, "".join(slides), json.dumps(films), SCRIPT))
    print("%s: %d slides" % (path, len(slides) + 1))


here = os.path.abspath(sys.argv[1])
main(here)
