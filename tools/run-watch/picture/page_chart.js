/* page_chart.js - curves over the axis that all charts of the page share, and the pointer on them */
/* ---- a chart: curves over the common axis ---- */

function Chart(o) {
    const me = this, small = () => window.innerWidth <= 600;
    Object.assign(me, { log: false, height: 190, lines: [], format: exact }, o);
    const head = el("header", {}, el("h2", {}, me.title), el("span", { class: "unit" }, me.unit || ""));
    if (me.canLog) {
        const b = el("button", { class: "scale", type: "button", onclick: () => { me.log = !me.log; me.draw(); } });
        me.label = () => { b.textContent = me.log ? "logarithmic" : "linear"; };
        head.append(b);
    }
    if (me.names) head.append(legend(me.names));
    me.host = el("div");
    me.section = el("section", { class: "chart" }, head, me.host);
    me.left = () => small() ? 54 : 60;
    me.width = () => Math.max(120, me.host.clientWidth - me.left() - 8);
    me.x = v => me.left() + (v - me.domain[0]) / (me.domain[1] - me.domain[0]) * me.width();
    me.value = px => me.domain[0] + (px - me.left()) / me.width() * (me.domain[1] - me.domain[0]);
}
Chart.prototype.shown = function () { return this.lines.filter(l => !view.hidden.has(l.hide)); };
Chart.prototype.range = function () {
    let lo = Infinity, hi = -Infinity;
    for (const l of this.shown())
        for (let i = 0; i < l.y.length; i++)
            if (l.at[i] >= this.domain[0] && l.at[i] <= this.domain[1] && !(this.log && l.y[i] <= 0)) {
                if (l.y[i] < lo) lo = l.y[i];
                if (l.y[i] > hi) hi = l.y[i];
            }
    if (!(hi >= lo)) return [this.log ? 0.1 : 0, 1];
    if (this.log) return [lo / 1.04, hi * 1.04];
    const pad = (hi - lo || Math.abs(hi) || 1) * 0.04;
    return [lo >= 0 && lo - pad < 0 ? 0 : lo - pad, hi + pad];
};
Chart.prototype.draw = function () {
    for (const l of this.lines) l.at = places(l.run, l.columns);
    this.domain = view.range || extent();
    const h = this.height, w = this.left() + this.width() + 8, bottom = h - 20;
    const s = svg("svg", { height: h, viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": this.title });
    const [lo, hi] = this.range();
    const by = this.log ? Math.log : v => v;
    this.y = v => bottom - (by(v) - by(lo)) / (by(hi) - by(lo)) * (bottom - 8);
    if (this.label) this.label();
    const ticks = this.log ? niceLog(lo, hi) : nice(lo, hi, 4);
    for (const v of ticks.at) {
        s.append(svg("line", { class: "grid", x1: this.left(), x2: w - 8, y1: this.y(v), y2: this.y(v) }),
            svg("text", { x: this.left() - 7, y: this.y(v) + 4, "text-anchor": "end" }, ticks.text(v)));
    }
    this.drawX(s, h, bottom);
    const clip = "clip" + view.charts.indexOf(this);
    const box = svg("clipPath", { id: clip });
    box.append(svg("rect", { x: this.left(), y: 0, width: this.width() + 1, height: bottom + 1 }));
    s.append(box);
    const g = svg("g", { "clip-path": `url(#${clip})` });
    marks(this, g, 4, bottom);
    for (const l of this.shown()) this.curve(g, l);
    s.append(g);
    this.finish(s, bottom);
};
Chart.prototype.drawX = function (s, h, bottom) {
    let about = Math.max(2, Math.floor(this.width() / 110));
    const find = n => (view.axis === "time" ? niceTime : nice)(this.domain[0], this.domain[1], n);
    /* Because the step is rounded up, a narrow axis could get a single tick, which is useless. */
    while (about < 5 && find(about).at.length < 2) about++;
    const ticks = find(about);
    for (const v of ticks.at) {
        const x = this.x(v), end = this.left() + this.width(), edge = x > end - 18;
        s.append(svg("line", { class: "grid", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
            svg("text", { x: edge ? end + 6 : x, y: h - 4, "text-anchor": edge ? "end" : "middle" }, ticks.text(v)));
    }
};
Chart.prototype.curve = function (g, l) {
    let d = "", last = -1;
    const dots = [];
    for (let i = 0; i < l.y.length; i++) {
        if (!isFinite(l.at[i]) || (this.log && l.y[i] <= 0)) continue;
        const joined = last >= 0 && (!l.stretch || l.stretch[i] === l.stretch[last]);
        const p = this.x(l.at[i]).toFixed(1) + " " + this.y(l.y[i]).toFixed(1);
        d += (joined ? "L" : "M") + p;
        const next = i + 1 < l.y.length && (!l.stretch || l.stretch[i + 1] === l.stretch[i]);
        if (l.dots || (!joined && !next)) dots.push(p.split(" "));
        last = i;
    }
    g.append(svg("path", { class: "curve", d, style: "stroke:" + l.colour }));
    for (const [x, y] of dots.length > 400 ? [] : dots)
        g.append(svg("circle", { cx: x, cy: y, r: 2.4, style: "fill:" + l.colour }));
};
Chart.prototype.finish = function (s, bottom) {
    this.hair = svg("line", { class: "hair", y1: 4, y2: bottom, visibility: "hidden" });
    this.zoom = svg("rect", { class: "zoom", y: 4, height: bottom - 4, visibility: "hidden" });
    s.append(this.zoom, this.hair);
    pointer(this, s);
    this.host.replaceChildren(s);
};
/* Returns the values at position `v`, as rows [colour, name, value], with their heading and position. */
Chart.prototype.at = function (v) {
    const rows = [];
    let where = null;
    for (const l of this.shown()) {
        const i = nearest(l.at, v);
        if (i < 0) continue;
        if (!where || Math.abs(l.at[i] - v) < Math.abs(where.x - v)) where = { x: l.at[i], line: l, i };
        rows.push([l.colour, l.name, this.format(l.y[i])]);
    }
    return where && { x: where.x, head: headOf(where.line.run, where.line.columns, where.i), rows };
};
function nearest(at, v) {
    let best = -1, off = Infinity;
    for (let i = 0; i < at.length; i++) {
        const d = Math.abs(at[i] - v);
        if (d <= off) { off = d; best = i; }
    }
    return best;
}
function headOf(run, c, i) {
    const parts = ["iteration " + whole(c.iteration[i])];
    if (isFinite(c.samples[i])) parts.push(short(c.samples[i]) + " samples");
    if (c.tokens && isFinite(c.tokens[i])) parts.push(short(c.tokens[i]) + " tokens");
    if (c.time && isFinite(c.time[i])) parts.push(calendar ? date(c.time[i] + run.t0) + " UTC" : span(c.time[i]));
    return parts.join(" · ");
}

/* Draws starts and incidents as faint lines through every chart. */
function marks(chart, g, top, bottom) {
    for (const run of runs) {
        if (view.hidden.has(run.name)) continue;
        for (const kind of ["start", "incident"]) {
            const c = run.events[kind];
            if (!c || (kind === "start" && several)) continue;
            places(run, c).forEach((v, i) => {
                if ((kind === "start" && i === 0) || !(v >= chart.domain[0] && v <= chart.domain[1])) return;
                g.append(svg("line", { class: kind, x1: chart.x(v), x2: chart.x(v), y1: top, y2: bottom }));
            });
        }
    }
}

/* ---- the pointer: a vertical line through all charts and a tooltip in one; dragging zooms in ---- */

const tip = el("div", { class: "tip", hidden: "" });
let drag = null;
function pointer(chart, s) {
    const place = e => (e.clientX - s.getBoundingClientRect().left);
    const inside = px => Math.min(Math.max(px, chart.left()), chart.left() + chart.width());
    s.addEventListener("pointermove", e => {
        const px = inside(place(e)), v = chart.value(px);
        const said = chart.at(v, e.clientY - s.getBoundingClientRect().top);
        for (const c of view.charts) {
            if (!c.hair) continue;
            const x = c.x(said ? said.x : v);
            c.hair.setAttribute("visibility", c.ownAxis ? "hidden" : "visible");
            c.hair.setAttribute("x1", x);
            c.hair.setAttribute("x2", x);
        }
        if (drag && drag.chart === chart) {
            chart.zoom.setAttribute("visibility", "visible");
            chart.zoom.setAttribute("x", Math.min(drag.px, px));
            chart.zoom.setAttribute("width", Math.abs(px - drag.px));
        }
        showTip(chart, said, e);
    });
    s.addEventListener("pointerleave", () => {
        tip.hidden = true;
        for (const c of view.charts) if (c.hair) c.hair.setAttribute("visibility", "hidden");
    });
    if (chart.ownAxis) return;
    s.addEventListener("pointerdown", e => {
        if (e.pointerType !== "mouse" || e.button !== 0) return;
        drag = { chart, px: inside(place(e)) };
        s.setPointerCapture(e.pointerId);
        e.preventDefault();
    });
    s.addEventListener("pointerup", e => {
        if (!drag) return;
        const from = drag.px, to = inside(place(e));
        const ends = [Math.min(from, to), Math.max(from, to)].map(px => chart.value(px));
        drag = null;
        chart.zoom.setAttribute("visibility", "hidden");
        if (Math.abs(to - from) > 6) look(ends);
    });
    s.addEventListener("dblclick", () => look(null));
}
function showTip(chart, said, e) {
    tip.hidden = !said;
    if (!said) return;
    const row = ([c, name, value]) => el("div", {}, c ? key(c) : null, el("span", {}, name), el("b", {}, value));
    tip.replaceChildren(el("div", { class: "at" }, said.head), ...said.rows.map(row));
    chart.section.append(tip);
    const box = chart.section.getBoundingClientRect(), w = tip.offsetWidth, x = e.clientX - box.left;
    tip.style.left = Math.max(0, x + 16 + w > box.width ? Math.min(x - 16 - w, box.width - w) : x + 16) + "px";
    tip.style.top = e.clientY - box.top + 14 + "px";
}

/* ---- legends ---- */

function legend(names) {
    return el("span", { class: "legend" }, ...names.map(([name, c, hide]) => {
        const b = el("button", { type: "button", "aria-pressed": "true", onclick: () => {
            if (!view.hidden.delete(hide)) view.hidden.add(hide);
            b.setAttribute("aria-pressed", String(!view.hidden.has(hide)));
            drawAll();
        } }, key(c), name);
        return b;
    }));
}
