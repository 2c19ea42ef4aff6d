#!/bin/sh
# site.sh - the pages of `make html`: every link leads somewhere, no other host is named, and the search finds words
#
# Skipped without pandoc and python3; the search is tried in Chromium where that is installed.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
command -v pandoc >/dev/null && command -v python3 >/dev/null || skip "no pandoc or python3 here"

check "build" sh docs/site/build.sh "$W/site"
cat >"$W/links.py" <<'EOF'
import os, re, sys, urllib.parse
folder, bad = sys.argv[1], 0
pages = {n: open(os.path.join(folder, n), encoding="utf-8").read() for n in os.listdir(folder) if n.endswith(".html")}
ids = {n: set(re.findall(r'\bid="([^"]*)"', t)) for n, t in pages.items()}
for name, text in pages.items():
    for link in re.findall(r'\b(?:href|src)="([^"]*)"', text):
        if re.match(r"(https?|mailto):", link):
            if "src=\"" + link in text:
                bad += 1; print(f"{name}: loads {link}")
            continue
        page, _, anchor = link.partition("#")
        page, anchor = page or name, urllib.parse.unquote(anchor)
        if not os.path.exists(os.path.join(folder, page)) or (anchor and page in ids and anchor not in ids[page]):
            bad += 1; print(f"{name}: {link} leads nowhere")
sys.exit(bad > 0)
EOF
check "headings of man pages have names" sh -c '! grep -E "<h[23]>" "$1"/*.1.html' - "$W/site"
check "man pages have contents" sh -c 'grep -L "class=\"toc\"" "$1"/*.1.html | diff - /dev/null' - "$W/site"
check "links" python3 "$W/links.py" "$W/site"
for b in chromium chromium-browser; do
    command -v $b >/dev/null || continue
    sed 's#</body>#<script>box = document.getElementById("search"); box.value = "salvage moments"; box.dispatchEvent(new Event("input"));</script></body>#' \
        "$W/site/index.html" >"$W/site/try.html"
    $b --headless --no-sandbox --dump-dom "file://$W/site/try.html" >"$W/dom" 2>/dev/null
    check "search" grep -q 'href="ckpt-edit.1.html#' "$W/dom"
    break
done
finish
