// search.js - search in all pages without a network: words.js has, for each section, [page, anchor, title, text].
(function () {
    "use strict";
    var box = document.getElementById("search"), found = document.getElementById("found"),
        article = document.querySelector("article");

    function count(text, word) { return text.split(word).length - 1; }

    function search() {
        var words = box.value.toLowerCase().split(/\s+/).filter(Boolean), hits = [];

        found.textContent = "";
        found.hidden = words.length === 0;
        article.hidden = !found.hidden;
        if (found.hidden)
            return;
        sections.forEach(function (s) {
            var title = s[2].toLowerCase(), text = s[3].toLowerCase(), score = 0;

            if (words.every(function (w) { return title.indexOf(w) >= 0 || text.indexOf(w) >= 0; }))
                words.forEach(function (w) { score += 20 * count(title, w) + Math.min(count(text, w), 10); });
            if (score)
                hits.push([score, s]);
        });
        hits.sort(function (a, b) { return b[0] - a[0]; });
        hits.slice(0, 40).forEach(function (h) {
            var s = h[1], at = Math.max(0, s[3].toLowerCase().indexOf(words[0]) - 60), a = document.createElement("a"),
                line = document.createElement("span");

            a.href = s[0] + (s[1] ? "#" + s[1] : "");
            a.textContent = s[2];
            line.textContent = s[3].slice(at, at + 180);
            a.appendChild(line);
            found.appendChild(a);
        });
        if (!hits.length)
            found.textContent = "No page has all of these words.";
    }
    /* The list of pages stands beside the text on a wide screen, closed above it on a narrow one. */
    document.getElementById("pages").open = !window.matchMedia("(max-width: 50rem)").matches;
    box.addEventListener("input", search);
    found.addEventListener("click", function () { box.value = ""; setTimeout(search, 0); });
}());
