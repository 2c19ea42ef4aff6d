/* page_base.js - the page of run-watch report: its data, the state of the view, elements, numbers, ticks */
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs, several = runs.length > 1;
const AXES = [["samples", "Samples"], ["tokens", "Tokens"], ["time", "Time"], ["iteration", "Iterations"]];
const COLOURS = 8;
/* page.html#time selects the initial axis. */
const asked = AXES.map(([a]) => a).find(a => "#" + a === location.hash);
const view = { axis: asked || "samples", range: null, hidden: new Set(), charts: [] };

/* ---- elements ---- */

function el(name, attributes, ...inside) {
    const e = document.createElement(name);
    for (const [k, v] of Object.entries(attributes || {}))
        if (k.startsWith("on")) e.addEventListener(k.slice(2), v); else e.setAttribute(k, v);
    e.append(...inside.filter(x => x !== null && x !== undefined));
    return e;
}
function svg(name, attributes, text) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    return e;
}
const colour = i => "var(--c" + i % COLOURS + ")";
const key = c => el("i", { class: "key", style: "background:" + c });

/* ---- numbers ---- */

function whole(v) { return Math.round(v).toLocaleString("en-US"); }
function short(v) {
    const a = Math.abs(v);
    for (const [size, letter] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k"]])
        if (a >= size) return trim(v / (letter === " k" ? 1e3 : size), 3) + letter;
    return a >= 1 || a === 0 ? trim(v, 4) : v.toPrecision(3);
}
function trim(v, digits) { return String(Number(v.toPrecision(digits))); }
function bytes(v) {
    const letters = ["", "K", "M", "G", "T", "P"];
    let i = 0;
    for (; Math.abs(v) >= 1024 && i < 5; i++) v /= 1024;
    return trim(v, 4) + " " + letters[i] + "B";
}
function exact(v) {
    return v === 0 ? "0" : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(3) : trim(v, 6);
}
function span(s) {
    if (s < 90) return trim(s, 3) + " s";
    if (s < 5400) return trim(s / 60, 3) + " min";
    if (s < 172800) return trim(s / 3600, 3) + " h";
    return trim(s / 86400, 3) + " days";
}
function date(s) { return new Date(s * 1000).toISOString().slice(0, 16).replace("T", " "); }

/* ---- the data on each axis ---- */

for (const run of runs) {
    const x = run.x;
    if (typeof x.tokens === "number") { const of = x.tokens; x.tokens = x.samples.map(s => s * of); }
    run.ratio = x.tokens && x.samples.length ? x.tokens[x.tokens.length - 1] / x.samples[x.samples.length - 1] : null;
    run.stretch = new Int32Array(x.iteration.length);
    for (let i = 0, b = 0; i < run.stretch.length; i++) {
        while (b < run.breaks.length && run.breaks[b] <= i) b++;
        run.stretch[i] = b;
    }
}
/* The time axis of one run is the calendar; several runs are aligned at their beginnings. */
const calendar = !several && runs[0].dated;
const offset = run => calendar ? run.t0 : 0;
const known = axis => axis !== "tokens" || runs.some(r => r.x.tokens);
/* Returns the positions of {iteration, samples, tokens, time} columns on the axis of the view. */
function places(run, columns) {
    const list = columns[view.axis];
    return !list ? columns.iteration.map(() => NaN) : view.axis === "time" ? list.map(t => t + offset(run)) : list;
}

/* ---- ticks ---- */

/* Formats ticks with distance `step`, in a unit that fits the largest, with enough digits to distinguish them. */
function tickText(step, most, base = 1000, letters = ["", " k", " M", " B", " T"]) {
    let unit = 1, i = 0;
    for (; most / unit >= (base === 1000 && i === 0 ? 1e4 : base) && i < letters.length - 1; i++) unit *= base;
    const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    return v => v === 0 ? "0" : digits > 3 ? Number(v.toPrecision(4)).toExponential()
        : (v / unit).toFixed(digits) + letters[i];
}
function nice(lo, hi, about) {
    const raw = (hi - lo) / Math.max(1, about), power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw * 0.999) || power * 10, out = [];
    for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; k++) out.push(k * step);
    return { at: out, text: tickText(step, Math.max(Math.abs(lo), Math.abs(hi))) };
}
function niceTime(lo, hi, about) {
    const raw = (hi - lo) / Math.max(1, about);
    const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600,
        604800, 1209600, 2592000, 7776000, 31536000];
    const step = steps.find(s => s >= raw) || Math.ceil(raw / 31536000) * 31536000, out = [];
    for (let k = Math.ceil(lo / step); k * step <= hi; k++) out.push(k * step);
    const clock = s => new Date(s * 1000).toISOString();
    const day = { month: "short", day: "numeric", timeZone: "UTC" };
    const month = s => new Date(s * 1000).toLocaleString("en-GB", day);
    const text = s => !calendar ? (s === 0 ? "0" : span(s)) : step >= 86400 || s % 86400 === 0 ? month(s)
        : clock(s).slice(11, step < 60 ? 19 : 16);
    return { at: out, text };
}
function niceLog(lo, hi) {
    const out = [], wide = Math.log10(hi / lo) > 4;
    for (let e = Math.floor(Math.log10(lo)); e <= Math.log10(hi); e++)
        for (const m of wide ? [1] : [1, 2, 5])
            if (m * Math.pow(10, e) >= lo * 0.999 && m * Math.pow(10, e) <= hi * 1.001) out.push(m * Math.pow(10, e));
    const about = out.length > 2 ? out : nice(lo, hi, 4).at.filter(v => v > 0);
    return { at: about, text: v => v >= 1e4 || v < 1e-3 ? v.toExponential(0) : String(Number(v.toPrecision(3))) };
}

/* ---- the common axis ---- */

function extent() {
    let lo = Infinity, hi = -Infinity;
    for (const run of runs) {
        if (view.hidden.has(run.name)) continue;
        const lists = [run.x, run.events.start, run.events.stop, run.events.save, run.events.incident];
        for (const list of lists.filter(x => x))
            for (const v of places(run, list)) { if (v < lo) lo = v; if (v > hi) hi = v; }
    }
    if (!(hi >= lo)) return [0, 1];
    if (view.axis !== "time" || !calendar) lo = Math.min(lo, hi > 0 && lo < hi * 0.1 ? 0 : lo);
    return hi > lo ? [lo, hi] : [lo, lo + 1];
}
