"""Converts the Markdown of this project's pages to HTML: headings, paragraphs, lists, tables, code,
links, pictures, emphasis, <details>. Not all of Markdown: tests/tools/test_site.py checks that
nothing of it is left in the pages."""
import html
import re


def slug(title):
    """Returns the anchor that GitHub gives to a heading."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def inline(text, link):
    """Converts what is within a paragraph; link(address) returns where a link leads."""
    kept = []

    def keep(markup):
        kept.append(markup)
        return "\0%d\0" % (len(kept) - 1)

    def picture(m):
        return keep('<img src="%s" alt="%s" loading="lazy">'
                    % (html.escape(link(m[2])), html.escape(m[1])))

    def anchor(m):
        return keep('<a href="%s">' % html.escape(link(m[2]))) + m[1] + keep("</a>")

    text = re.sub(r"(?s)(`+)(.+?)\1", lambda m: keep("<code>%s</code>" % html.escape(m[2].strip())),
                  text)
    text = re.sub(r"\\([\\`*_{}\[\]()#+.!|<>-])", lambda m: keep(html.escape(m[1])), text)
    text = re.sub(r"</?(?:sub|sup|br|b|i|em|strong|kbd)\s*/?>", lambda m: keep(m[0]), text)
    text = html.escape(text, quote=False)
    text = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", picture, text)
    text = re.sub(r"\[([^\[\]]*)\]\(([^)\s]+)\)", anchor, text)
    text = re.sub(r"&lt;(https?://[^&\s]+)&gt;", lambda m: keep('<a href="%s">%s</a>' % (m[1], m[1])),
                  text)
    text = re.sub(r"(?s)\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"(?s)(?<!\w)\*(?=\S)(.+?)(?<=\S)\*(?!\w)", r"<em>\1</em>", text)
    while "\0" in text:
        text = re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], text)
    return text


def cells(row):
    """Splits a table's row at the bars that no backslash precedes."""
    row = row.strip().strip("|") if not row.rstrip().endswith("\\|") else row.strip()[1:]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]


def table(rows, link):
    head, rule, body = cells(rows[0]), cells(rows[1]), rows[2:]
    right = [mark.endswith(":") for mark in rule]

    def line(values, tag):
        out = ""
        for k, value in enumerate(values):
            style = ' class="right"' if k < len(right) and right[k] else ""
            out += "<%s%s>%s</%s>" % (tag, style, inline(value, link), tag)
        return "<tr>%s</tr>\n" % out
    # A notation has no second heading: a cell without text is no heading at all.
    return '<div class="wide"><table>\n<thead>%s</thead>\n<tbody>%s</tbody>\n</table></div>\n' % (
        line(head, "th"), "".join(line(cells(row), "td") for row in body))


ITEM = re.compile(r"( *)([-*]|\d+\.) +")
STARTS = re.compile(r"#{1,6} |```|</?details|<summary|\| |( *)([-*]|\d+\.) +\S")


def convert(text, link, shift=0):
    """Returns the HTML of a page of Markdown. Headings move down by `shift` levels."""
    lines = text.split("\n")
    out, k, used = [], 0, {}
    while k < len(lines):
        line = lines[k]
        if not line.strip():
            k += 1
        elif line.startswith("```"):
            end = k + 1
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            out.append("<pre><code>%s</code></pre>\n" % html.escape("\n".join(lines[k + 1:end])))
            k = end + 1
        elif line.startswith("    "):
            end = k
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            code = "\n".join(one[4:] for one in lines[k:end]).rstrip()
            out.append("<pre><code>%s</code></pre>\n" % html.escape(code))
            k = end
        elif re.match(r"#{1,6} ", line):
            marks, title = line.split(" ", 1)
            anchor = slug(title)
            used[anchor] = used.get(anchor, -1) + 1
            if used[anchor]:
                anchor += "-%d" % used[anchor]
            level = len(marks) + shift
            out.append('<h%d id="%s">%s</h%d>\n' % (level, anchor, inline(title, link), level))
            k += 1
        elif line.startswith("|"):
            end = k
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            out.append(table(lines[k:end], link))
            k = end
        elif re.match(r"</?details|<summary", line):
            out.append(line + "\n")
            k += 1
        elif ITEM.match(line):
            tag = "ol" if ITEM.match(line)[2][0].isdigit() else "ul"
            start = ITEM.match(line)[2].rstrip(".")
            opening = "<ol start=\"%s\">" % start if tag == "ol" and start != "1" else "<%s>" % tag
            items = []
            while k < len(lines) and ITEM.match(lines[k]):
                width = len(ITEM.match(lines[k])[0])
                item = [lines[k][width:]]
                k += 1
                while k < len(lines):
                    blank = not lines[k].strip()
                    inside = lines[k].startswith(" " * width)
                    if blank and k + 1 < len(lines) and lines[k + 1].startswith(" " * width):
                        inside = True
                    if not inside:
                        break
                    item.append(lines[k][width:])
                    k += 1
                body = convert("\n".join(item), link, shift)
                if body.count("<p>") == 1 and body.startswith("<p>"):
                    body = body.replace("<p>", "", 1).replace("</p>", "", 1)
                items.append("<li>%s</li>\n" % body.strip())
                while k < len(lines) and not lines[k].strip() and k + 1 < len(lines) and \
                        ITEM.match(lines[k + 1]):
                    k += 1
            out.append("%s\n%s</%s>\n" % (opening, "".join(items), tag))
        else:
            end = k + 1
            while end < len(lines) and lines[end].strip() and not STARTS.match(lines[end]):
                end += 1
            out.append("<p>%s</p>\n" % inline("\n".join(lines[k:end]), link))
            k = end
    return "".join(out)
