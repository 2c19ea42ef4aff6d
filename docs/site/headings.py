"""headings.py - give the headings of a man page names that a link can have: pandoc -f man -t json ... | headings.py TITLE

Reads and writes pandoc's JSON. TITLE becomes the first heading, above those of the page. A name is the heading's text in
lower case with '-' between words; a second one of the same text gets a number.
"""
import json
import re
import sys


def text_of(inline):
    """The text of a list of pandoc's inline elements."""
    words = []
    for x in inline:
        content = x.get("c", " ")
        words.append(content if isinstance(content, str) else text_of([y for y in content if isinstance(y, dict)]))
    return "".join(words)


def main(title):
    page, names = json.load(sys.stdin), {}
    for block in page["blocks"]:
        if block["t"] == "Header":
            level, attributes, inline = block["c"]
            name = re.sub(r"[^a-z0-9]+", "-", text_of(inline).lower()).strip("-")
            names[name] = names.get(name, 0) + 1
            attributes[0] = name if names[name] == 1 else f"{name}-{names[name]}"
            block["c"][0] = level + 1
    page["blocks"].insert(0, {"t": "Header", "c": [1, ["", [], []], [{"t": "Str", "c": title}]]})
    json.dump(page, sys.stdout)


main(sys.argv[1])
