/* page_rows.js - charts other than the curves of a run: events, slow ranks, usage of disks */
/* ---- events: a row for each kind ---- */

const KINDS = [["incident", "incidents"], ["start", "starts"], ["stop", "ends"], ["save", "saves"],
    ["backup", "backups"]];

function frame(chart, h) {
    const w = chart.left() + chart.width() + 8;
    return svg("svg", { height: h, viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": chart.title });
}
function Lane() {
    const pitch = several ? 10 + 9 * runs.length : 24;
    const kinds = KINDS.filter(([k]) => runs.some(r => r.events[k]));
    Chart.call(this, { title: "What happened", unit: "", height: 26 + pitch * kinds.length });
    this.kinds = kinds;
    this.pitch = pitch;
}
Lane.prototype = Object.create(Chart.prototype);
Lane.prototype.draw = function () {
    this.domain = view.range || extent();
    const w = this.left() + this.width() + 8, bottom = this.height - 20;
    const s = frame(this, this.height);
    this.spots = [];
    this.kinds.forEach(([kind, name], k) => {
        const y = 15 + this.pitch * k;
        s.append(svg("line", { class: "grid", x1: this.left(), x2: w - 8, y1: y, y2: y }),
            svg("text", { x: this.left() - 7, y: y + 4, "text-anchor": "end" }, name));
        const bad = !several && kind === "incident";
        runs.forEach((run, r) => this.row(s, kind, run, bad ? "var(--bad)" : colour(r), y + 9 * r));
    });
    this.drawX(s, this.height, bottom);
    this.finish(s, bottom);
};
Lane.prototype.row = function (s, kind, run, c, y) {
    const e = run.events[kind];
    if (!e || view.hidden.has(run.name)) return;
    places(run, e).forEach((v, i) => {
        if (!(v >= this.domain[0] && v <= this.domain[1])) return;
        const x = this.x(v), gone = kind === "save" && !e.kept[i];
        const size = several ? 4 : 6;
        const diamond = `M${x} ${y - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}Z`;
        const shape = kind === "incident" ? svg("path", { d: diamond })
            : kind === "start" ? svg("path", { d: `M${x - 2} ${y - size}l${size + 1} ${size}l${-size - 1} ${size}Z` })
            : kind === "stop" ? svg("rect", { x: x - 3.5, y: y - 3.5, width: 7, height: 7 })
            : svg("rect", { x: x - 1, y: y - size, width: 2, height: 2 * size });
        shape.setAttribute("style", "fill:" + c + (gone ? ";opacity:.3" : ""));
        s.append(shape);
        this.spots.push({ x, y, v, run, kind, e, i, c });
    });
};
Lane.prototype.at = function (v, py) {
    const px = this.x(v), high = several ? 5 : 13;
    const near = this.spots.filter(p => Math.abs(p.x - px) < 7 && Math.abs(p.y - py) < high);
    if (!near.length) return null;
    near.sort((a, b) => Math.abs(a.x - px) - Math.abs(b.x - px));
    const p = near[0], looked = p.run.status || p.run.facts.kept;
    const there = !looked ? "" : p.e.kept[p.i] ? ", still there" : ", no longer there";
    const name = { save: "saved" + there, stop: "end" }[p.kind] || p.kind;
    const more = near.length > 1 ? [["", "and " + (near.length - 1) + " more close by", ""]] : [];
    return { x: p.v, head: headOf(p.run, p.e, p.i), rows: [[p.c, (several ? p.run.name + ": " : "") + name +
        (p.e.text[p.i] ? ": " + p.e.text[p.i] : ""), ""], ...more] };
};

/* ---- stragglers: ranks by hour ---- */

function Slow(run) {
    const cells = run.slow.cells, ranks = new Map();
    for (const c of cells) {
        const r = ranks.get(c.rank) || { rank: c.rank, host: c.host, n: 0, most: 0 };
        r.n += c.n;
        r.most = Math.max(r.most, c.n / c.of);
        ranks.set(c.rank, r);
    }
    this.ranks = [...ranks.values()].sort((a, b) => b.most - a.most || b.n - a.n).slice(0, 16);
    Chart.call(this, {
        title: "Slowest rank", height: 26 + 20 * this.ranks.length, ownAxis: true, run,
        unit: "how often a rank was named, each " + span(run.slow.width_s) + (several ? " of " + run.name : ""),
    });
    this.left = () => window.innerWidth <= 600 ? 54 : 150;
}
Slow.prototype = Object.create(Chart.prototype);
Slow.prototype.draw = function () {
    const run = this.run, wide = run.slow.width_s, cells = run.slow.cells;
    const first = Math.min(...cells.map(c => c.at)), last = Math.max(...cells.map(c => c.at)) + 1;
    const w = this.left() + this.width() + 8, h = this.height, s = frame(this, h);
    this.domain = [first * wide, last * wide];
    this.spots = [];
    this.ranks.forEach((r, k) => {
        const y = 4 + 20 * k, room = Math.floor(this.left() / 6.3);
        const name = "rank " + r.rank + (r.host ? ", " + r.host : "");
        const cut = "rank " + r.rank + (room > 20 ? ", " + r.host.slice(0, room - 12) + "…" : "");
        const label = name.length > room && r.host ? cut : name;
        s.append(svg("text", { x: this.left() - 7, y: y + 13, "text-anchor": "end" }, label),
            svg("line", { class: "grid", x1: this.left(), x2: w - 8, y1: y + 19, y2: y + 19 }));
        for (const c of cells) {
            if (c.rank !== r.rank) continue;
            const x = this.x(c.at * wide), to = this.x((c.at + 1) * wide);
            s.append(svg("rect", { x, y: y + 1, width: Math.max(1, to - x - (to - x > 4 ? 1 : 0)), height: 17,
                style: "fill:" + colour(1) + ";opacity:" + (0.15 + 0.85 * c.n / c.of).toFixed(2) }));
            this.spots.push({ x, to, y, c, name });
        }
    });
    const mode = view.axis;
    view.axis = "time";
    this.drawX(s, h, h - 20);
    view.axis = mode;
    this.finish(s, h - 20);
};
Slow.prototype.at = function (v, py) {
    const px = this.x(v), p = this.spots.find(q => px >= q.x && px < q.to && py >= q.y && py < q.y + 20);
    if (!p) return null;
    const from = p.c.at * this.run.slow.width_s;
    return { x: v, head: calendar ? date(from) + " UTC, " + span(this.run.slow.width_s) : "from " + span(from) + " on",
        rows: [[colour(1), p.name, p.c.n + " of " + p.c.of + " lines"],
            ["", "most above its stage's median", p.c.above.toFixed(1) + " %"]] };
};

/* ---- disks ---- */

function Disk(area) {
    const show = area.full === 100 ? v => trim(v, 4) + " %" : area.of === "inodes" ? short : bytes;
    Chart.call(this, {
        title: area.name, height: 130, ownAxis: true, area, format: show,
        unit: (area.full === 0 ? "free" : "used") + ", " + show(area.v[area.v.length - 1]) +
            (area.full > 0 && area.full !== 100 ? " of " + show(area.full) : "") +
            (area.hours >= 0 ? "; full in " + span(area.hours * 3600) + " at the last day's rate" : "; not filling"),
    });
    if (area.hours >= 0 && area.hours < 48) this.section.querySelector(".unit").classList.add("bad");
}
Disk.prototype = Object.create(Chart.prototype);
Disk.prototype.draw = function () {
    const a = this.area, n = a.t.length, now = a.t[n - 1], ahead = Math.max(a.t[n - 1] - a.t[0], 3600);
    const until = a.hours >= 0 ? Math.min(now + a.hours * 3600, now + ahead) : now;
    const there = a.hours > 0 ? a.v[n - 1] + (a.full - a.v[n - 1]) * (until - now) / (a.hours * 3600) : a.v[n - 1];
    const close = Math.abs(there - a.full) <= Math.abs(a.full) * 0.15;
    const w = this.left() + this.width() + 8, h = this.height, bottom = h - 20;
    const s = frame(this, h);
    const values = a.v.concat(there, close ? [a.full] : []), lo = Math.min(...values), hi = Math.max(...values);
    const pad = (hi - lo || Math.abs(hi) || 1) * 0.08, low = Math.max(0, lo - pad), high = hi + pad;
    this.domain = [a.t[0], until > a.t[0] ? until : a.t[0] + 1];
    this.y = v => bottom - (v - low) / (high - low) * (bottom - 8);
    const isBytes = a.full !== 100 && a.of !== "inodes";
    const unit = isBytes ? Math.pow(1024, Math.min(5, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)))) : 1;
    const ticks = nice(low / unit, high / unit, 3), step = (ticks.at[1] - ticks.at[0] || high / unit) * unit;
    const units = [" B", " KB", " MB", " GB", " TB", " PB"];
    const text = a.full === 100 ? v => v + " %" : a.of === "inodes" ? ticks.text : tickText(step, high, 1024, units);
    for (const v of ticks.at.map(t => t * unit))
        s.append(svg("line", { class: "grid", x1: this.left(), x2: w - 8, y1: this.y(v), y2: this.y(v) }),
            svg("text", { x: this.left() - 7, y: this.y(v) + 4, "text-anchor": "end" }, text(v)));
    if (close)
        s.append(svg("path", { class: "incident", d: `M${this.left()} ${this.y(a.full)}H${w - 8}` }));
    const d = a.t.map((t, i) => (i ? "L" : "M") + this.x(t).toFixed(1) + " " + this.y(a.v[i]).toFixed(1)).join("");
    s.append(svg("path", { class: "curve", d, style: "stroke:" + colour(0) }),
        svg("path", { class: "curve", d: `M${this.x(now)} ${this.y(a.v[n - 1])}L${this.x(until)} ${this.y(there)}`,
            style: "stroke:" + colour(0) + ";stroke-dasharray:4 4" }));
    this.drawDates(s, h, bottom);
    this.finish(s, bottom);
};
Disk.prototype.drawDates = function (s, h, bottom) {
    for (let k = 0; k <= 3; k++) {
        const v = this.domain[0] + (this.domain[1] - this.domain[0]) * k / 3;
        const end = k === 0 ? "start" : k === 3 ? "end" : "middle";
        if (k % 3 === 0 || this.width() > 500)
            s.append(svg("text", { x: this.x(v), y: h - 4, "text-anchor": end }, date(v)));
    }
};
Disk.prototype.at = function (v) {
    const i = nearest(this.area.t, v);
    const row = [colour(0), this.area.name, this.format(this.area.v[i])];
    return { x: this.area.t[i], head: date(this.area.t[i]) + " UTC", rows: [row] };
};
