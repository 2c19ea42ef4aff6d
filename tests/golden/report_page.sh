#!/bin/sh
# report_page.sh - the page of run-watch report in a browser: at 400 and 1600 pixels, light and dark
#
# Headless Chromium loads all pages in frames of these widths. A probe in the page visits all charts on every axis,
# presses every button, and reports its errors, width and colours. Needs chromium; skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium here"
export TZ=UTC

cat >"$W/probe.js" <<'END'
const bad = [];
window.addEventListener("error", e => bad.push(e.message));
const log = console.error;
console.error = (...x) => { bad.push(x.join(" ")); log(...x); };
/* Texts that are cut off, charts whose axis says nothing, labels that lie on each other. */
function legible(axis) {
    for (const e of document.querySelectorAll(".figures dd, .figures small, .told .wide"))
        if (e.scrollWidth > e.clientWidth + 1) bad.push(axis + ": cut: " + e.textContent.slice(0, 50));
    for (const s of document.querySelectorAll("svg")) {
        const ticks = [...s.querySelectorAll("text")].filter(t => +t.getAttribute("y") === s.getAttribute("height") - 4);
        const texts = [...s.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
        if (ticks.length < 2 && !/tiny/.test(location)) bad.push(axis + ": ticks of " + s.getAttribute("aria-label") + ": " + ticks.length);
        texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
            if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
                bad.push(axis + ": " + a + " lies on " + b + " in " + s.getAttribute("aria-label"));
        }));
    }
}
function probe() {
    const axes = [...document.querySelectorAll(".axis button")], colours = s => getComputedStyle(s).backgroundColor;
    let charts = 0, drawn = 0;
    for (const b of [...axes, axes[0]]) {
        b.click();
        legible(b.textContent);
        for (const s of document.querySelectorAll("svg")) {
            const r = s.getBoundingClientRect();
            for (const [f, g] of [[0.2, 0.2], [0.5, 0.4], [0.9, 0.6]])
                s.dispatchEvent(new PointerEvent("pointermove", { clientX: r.left + r.width * f, clientY: r.top + r.height * g }));
            charts++;
        }
    }
    for (const b of document.querySelectorAll(".scale, .legend button")) { b.click(); b.click(); }
    for (const e of document.querySelectorAll("svg *"))
        for (const a of e.attributes) if (/NaN|undefined|Infinity/.test(a.value)) bad.push(e.tagName + " " + a.name + "=" + a.value);
    for (const p of document.querySelectorAll("path.curve")) drawn += p.getAttribute("d").length > 20;
    const edge = document.documentElement.clientWidth;
    parent.postMessage({ page: location.pathname.replace(/.*\/(\w+)-probed.html/, "$1"), bad, scroll: document.documentElement.scrollWidth - edge, edge, charts, drawn,
        dark: matchMedia("(prefers-color-scheme: dark)").matches, back: colours(document.body),
        asked: performance.getEntriesByType("resource").length, text: document.body.innerText.length }, "*");
}
window.addEventListener("load", () => setTimeout(probe, 20));
END

# Three runs: one of 100000 iterations and 20 starts; one with almost no data; a genuine log, if it is there.
awk 'BEGIN {
    for (i = 0; start < 20; start++) {
        print "using world size: 8, data-parallel-size: 2 "
        printf "[before the start of training step] datetime: 2026-03-%02d 00:00:00 \n", start + 1
        for (to = i + 5100; i < to && i < 100000; ) {
            i++
            printf " iteration %8d/%8d | consumed samples: %12d | consumed tokens: %12d | elapsed time per iteration (s): %.2f | learning rate: %.3E | global batch size: %5d | lm loss: %.6E | grad norm: %.3f | samples per second: %.3f | TFLOPs: %.2f |\n", i, 100000, i * 512, i * 512 * 2048, 15, 6e-5 / (1 + i / 1e4), 512, 2 + 8 / (1 + i / 100) + i * 7919 % 1000 / 1e4, 0.3 + i * 104729 % 1000 / 1e4, 34, 150
            if (i % 1000 == 0) for (k = 1; k < 4; k++) printf "set %d loss at iteration %d | lm loss value: %.4f | \n", k, i, 2 + k / 10 + 8 / (1 + i / 100)
            if (i % 500 == 0) printf "  successfully saved checkpoint at iteration %7d to ckpt\n", i
            if (i % 50 == 0) printf "[straggler] iteration %8d | slowest rank: %d | host: a-rather-long-name-of-a-host-%d | stage: 0 | compute (s): 8.0 | share of time: 80.0%% | above its stage: 2.0%% |\n", i, i % 7, i % 7
        }
        if (i == 100000) break
        i -= 60
    } }' >"$W/big.log"
mkdir -p "$W/ckpt/reports/20260303T000000Z-5"
echo '{"form":"train-report-1","time_s":1772490000,"cause":"hang","message":"rank 3 (host n17) waits for <b>ever</b>","iteration":9000}' \
    >"$W/ckpt/reports/20260303T000000Z-5/report.json"
printf '{"areas":{"fs /x SCRATCH bytes":[[1772400000,3e12],[1772403600,4e12],[1772407200,5e12]],"fs /x WORK inodes":[[1772400000,100],[1772407200,100]]},"full":{"fs /x SCRATCH bytes":9e12,"fs /x WORK inodes":3000000}}\n' >"$W/book"
printf ' iteration        1/       3 | consumed samples:            4 | elapsed time per iteration (s): 0.5 | lm loss: 6.2E+00 |\n' >"$W/tiny.log"
make_page() { run-watch report --state "$W/book" -o "$W/$1.html" --title "a run" "$2" "$3"; }
check "page of a big run" make_page big big="$W/big.log" big="$W/ckpt"
check "page of one iteration" make_page tiny "$W/tiny.log" --now=1772500000
check "page of two runs" make_page two "$W/big.log" "$W/tiny.log"
pages="big tiny two"
if [ -f ../shared/golden/bloom-tp2pp2dp2/train.log ]; then
    check "page of genuine logs" make_page genuine ../shared/golden/bloom-tp2pp2dp2/train.log \
        ../shared/golden/gpt2-fp16-tp2pp2dp2/train.log
    pages="$pages genuine"
fi
size=$(wc -c <"$W/big.html")
check "a big run's page is below 3 MB ($size bytes)" test "$size" -lt 3000000

# Print one line per page with the output of both frames. SCHEME is 0 for dark, 1 for light.
ask() {
    {
        echo '<!DOCTYPE html><script>addEventListener("message", e =>
            document.documentElement.setAttribute("said-" + e.data.page + "-" + e.data.edge, JSON.stringify(e.data)))</script>'
        for page in $pages; do
            for width in 400 1600; do
                echo "<iframe src='$page-probed.html' style='width:${width}px;height:900px;border:0'></iframe>"
            done
        done
    } >"$W/outer.html"
    "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size=2100,1000 \
        --user-data-dir="$W/profile" --allow-file-access-from-files --blink-settings=preferredColorScheme="$1" \
        --virtual-time-budget=20000 --dump-dom "file://$W/outer.html" 2>"$W/browser.err" |
        grep -o 'said-[a-z]*-[0-9]*="[^"]*"' | sed 's/&quot;/"/g'
}
for page in $pages; do
    awk 'FNR == NR { probe = probe $0 "\n"; next } { print } /^<head>$/ { print "<script>" probe "</script>" }' \
        "$W/probe.js" "$W/$page.html" >"$W/$page-probed.html"
done
# Print the number or text called NAME of that output.
said() { echo "$answer" | sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p"; }

for scheme in 0 1; do
    ask $scheme >"$W/said"
    for page in $pages; do
        for width in 400 1600; do
            name="$page at $width, $([ $scheme = 0 ] && echo dark || echo light)"
            answer=$(grep "^said-$page-$width=" "$W/said")
            case $answer in
            *'"bad":[]'*) pass ;;
            *) fail "$name: errors: ${answer:-nothing was said; $(tail -n 2 "$W/browser.err")}"; continue ;;
            esac
            check "$name: no scrolling sideways ($(said scroll))" test "$(said scroll)" -eq 0
            check "$name: asks nothing of a network" test "$(said asked)" -eq 0
            check "$name: its colours" test "$(said back)" = "$([ $scheme = 0 ] && echo 'rgb(21' || echo 'rgb(255')"
            [ "$page" = tiny ] || check "$name: curves are drawn ($(said drawn))" test "$(said drawn)" -ge 4
            check "$name: there are charts ($(said charts))" test "$(said charts)" -ge 4
        done
    done
done
finish
