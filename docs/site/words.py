"""words.py - print words.js, what search.js searches: words.py FOLDER

A section is what stands below a heading. Each is [page, anchor, title, text].
"""
import html.parser
import json
import os
import sys


class Sections(html.parser.HTMLParser):
    def __init__(self, page, title):
        super().__init__()
        self.page, self.title, self.inside, self.heading = page, title, False, False
        self.found = [[page, "", title, ""]]

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "article":
            self.inside = True
        elif tag in ("h1", "h2", "h3") and self.inside:
            self.heading = True
            self.found.append([self.page, attrs.get("id", ""), self.title + ": ", ""])

    def handle_endtag(self, tag):
        if tag == "article":
            self.inside = False
        elif tag in ("h1", "h2", "h3"):
            self.heading = False

    def handle_data(self, data):
        if self.inside:
            self.found[-1][2 if self.heading else 3] += data


def main(folder):
    sections = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".html"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                text = f.read()
            title = text.split("<title>", 1)[1].split(" - shardkit</title>", 1)[0]
            parser = Sections(name, title)
            parser.feed(text)
            sections += [s[:3] + [" ".join(s[3].split())] for s in parser.found if s[3].strip()]
    print("var sections = " + json.dumps(sections, ensure_ascii=False) + ";")


main(sys.argv[1])
