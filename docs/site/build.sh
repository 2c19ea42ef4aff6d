#!/bin/sh
# build.sh - build the documents and man pages into static pages: build.sh OUT
#
# Each docs/*.md, README.md, CONTRIBUTING.md and CHANGELOG.md, and each docs/*.1 becomes a page of OUT, with a list of all
# pages and a search that needs no network (words.js, made from the pages' text). Needs pandoc and python3; says so and
# exits 1 without them. The pages refer to no other host.
set -eu
cd "$(dirname "$0")/../.."
out=$1
for need in pandoc python3; do
    command -v $need >/dev/null || { echo "make html needs $need" >&2; exit 1; }
done
rm -rf "${out:?}.part"
mkdir -p "$out.part"
work=$(mktemp -d)
trap 'rm -rf "${work:?}"' EXIT

title_of() { sed -n 's/^# //p' "$1" | head -n 1 | tr -d '`'; }

# The list of pages, in three groups.
{
    echo '<b>Start</b>'
    echo '<a href="index.html">shardkit</a>'
    for f in broken layouts backups operations library training; do
        echo "<a href=\"$f.html\">$(title_of docs/$f.md)</a>"
    done
    echo '<b>Commands</b>'
    for f in docs/*.1; do echo "<a href=\"$(basename "$f").html\">$(basename "$f" .1)</a>"; done
    echo '<b>Reference</b>'
    for f in formats performance tested architecture; do
        echo "<a href=\"$f.html\">$(title_of docs/$f.md)</a>"
    done
    echo '<a href="contributing.html">Contributing</a>'
    echo '<a href="changelog.html">Changes</a>'
} >"$work/pages"
sed -e "/<!-- PAGES -->/{r $work/pages" -e 'd;}' docs/site/page.html >"$work/page.html"

# page NAME TITLE PANDOC-OPTIONS... <SOURCE: links to other documents become links to their pages.
page() {
    name=$1 title=$2
    shift 2
    pandoc -t html5 --template "$work/page.html" --metadata title="$title" "$@" |
        sed -E -e 's#href="(docs/)?([a-z0-9-]+)\.md(\#[^"]*)?"#href="\2.html\3"#g' \
            -e 's#href="(\.\./)?CONTRIBUTING\.md#href="contributing.html#g; s#href="(\.\./)?CHANGELOG\.md#href="changelog.html#g' \
            -e 's#href="(\.\./)?README\.md#href="index.html#g; s#(src|href)="docs/#\1="#g' \
            -e "s#<a href=\"$name.html\">#<a class=\"here\" href=\"$name.html\">#" >"$out.part/$name.html"
}
document() { page "$1" "$2" -f gfm --toc --toc-depth 2 <"$3"; }
man_page() {
    pandoc -f man -t json "$1" | python3 docs/site/headings.py "$(basename "$1" .1)(1)" |
        page "$(basename "$1")" "$(basename "$1" .1)" -f json --toc --toc-depth 3
}

page index shardkit -f gfm <README.md
document contributing Contributing CONTRIBUTING.md
document changelog Changes CHANGELOG.md
for f in docs/*.md; do document "$(basename "$f" .md)" "$(title_of "$f")" "$f"; done
for f in docs/*.1; do man_page "$f"; done
cp docs/*.svg docs/site/site.css docs/site/search.js LICENSE "$out.part"
python3 docs/site/words.py "$out.part" >"$out.part/words.js"
rm -rf "${out:?}"
mv "$out.part" "$out"
echo "$out/index.html: $(find "$out" -name '*.html' | wc -l) pages"
