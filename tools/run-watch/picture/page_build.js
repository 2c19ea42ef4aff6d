/* page_build.js - add key figures, charts and the table to the page when all scripts have been loaded */

/* ---- key figures: [name, value, details, whether it is a problem] ---- */

function state(run) {
    const s = run.status;
    if (!s) return ["-", "no status.json was given", false];
    if (s.stop_reason)
        return [s.stop_reason, s.message || "since " + date(s.updated_s) + " UTC",
            s.stop_reason === "failed" || s.stop_reason === "nan"];
    const age = data.made_s - s.updated_s;
    if (s.stalled) return ["stalled", s.stalled, true];
    if (age > 600) return ["silent", "no sign of life for " + span(age), true];
    return ["running", (s.phase || "") + ", " + span(age) + " ago", false];
}
function valids(run) {
    const last = run.valid.map(v => v.y[v.y.length - 1]).filter(isFinite);
    if (!last.length) return [];
    const which = last.length > 1 ? "best of " + last.length + " sets" : run.valid[0].name;
    return [["Validation", Math.min(...last).toFixed(4), which]];
}
function speed(run) {
    const f = run.facts;
    if (!f.samples_s) return [];
    const tokens = run.ratio ? short(f.samples_s * run.ratio) + " tokens/s" : "samples per second";
    const flops = f.tflops ? ", " + trim(f.tflops, 3) + " TFLOPs" : "";
    return [["Throughput", short(f.samples_s) + " /s", tokens + flops]];
}
function figures(run) {
    const f = run.facts, of = f.train_iters > 0 ? f.train_iters : null;
    const left = of && f.step_s > 0 ? (of - f.iteration) * f.step_s : null;
    const done = of ? "of " + whole(of) + ", " + trim(100 * f.iteration / of, 3) + " %" : "";
    const there = run.status || f.kept ? f.kept + " are there" : "";
    const copies = f.backups ? (there ? ", " : "") + f.backups + " backed up" : "";
    const last = f.incidents ? "the last: " + run.events.incident.text[f.incidents - 1].split(":")[0] : "none reported";
    return [
        ["State", ...state(run)],
        ["Iteration", whole(f.iteration), done],
        ["Samples", f.samples === null ? "-" : short(f.samples), f.tokens ? short(f.tokens) + " tokens" : ""],
        ["Loss", f.loss === null ? "-" : f.loss.toFixed(4), "mean of the last " + f.window],
        ...valids(run), ...speed(run),
        ["Time", span(f.span_s), left > 0 ? span(left) + " to go" : left === 0 ? "all done" : ""],
        ["Starts", whole(f.starts), f.repeated ? whole(f.repeated) + " iterations done again" : "nothing done twice"],
        ["Saves", whole(f.saves), there + copies],
        ["Incidents", whole(f.incidents), last, f.incidents > 0],
    ];
}
function figureCards(run) {
    return el("dl", { class: "figures" }, ...figures(run).map(([name, value, more, bad]) =>
        el("div", {}, el("dt", {}, name),
            el("dd", { class: bad ? "bad" : "", title: more }, value, el("small", {}, more || "")))));
}
function table(heads, rows) {
    return el("div", { class: "wide" }, el("table", {}, el("tr", {}, ...heads), ...rows.map(r => el("tr", {}, ...r))));
}
function figureTable() {
    const all = runs.map(figures), names = [];
    for (const list of all) for (const [n] of list) if (!names.includes(n)) names.push(n);
    const cell = (list, name) => {
        const f = list.find(x => x[0] === name);
        return el("td", { class: f && f[3] ? "n bad" : "n", title: f ? f[2] : "" }, f ? f[1] : "-");
    };
    return table([el("th", {}, "Run"), ...names.map(n => el("th", { class: "n" }, n))],
        runs.map((run, r) => [el("td", {}, key(colour(r)), " " + run.name), ...names.map(n => cell(all[r], n))]));
}

/* ---- the table of messages ---- */

const TOLD_MOST = 200;

function toldRow(x) {
    const cells = [el("td", {}, calendar ? date(x.at + x.run.t0) : span(x.at)), el("td", {}, x.run.name),
        el("td", { class: "iteration" }, whole(x.iteration)),
        el("td", x.kind === "incident" ? { class: "bad" } : {}, x.kind === "stop" ? "end" : x.kind),
        el("td", { class: "text" }, x.text)];
    return several ? cells : cells.filter((_, i) => i !== 1);
}
function told() {
    const list = [];
    for (const run of runs)
        for (const kind of ["incident", "start", "stop"]) {
            const e = run.events[kind];
            if (!e) continue;
            e.iteration.forEach((iteration, i) =>
                list.push({ run, kind, iteration, at: e.time[i], text: e.text[i], number: list.length }));
        }
    if (!list.length) return null;
    list.sort((a, b) => b.at + offset(b.run) - a.at - offset(a.run) || b.number - a.number);
    const heads = [calendar ? "Time, UTC" : "After", ...(several ? ["Run"] : []), "Iteration", "What", ""];
    const more = list.length - TOLD_MOST;
    return el("section", { class: "told" }, el("h2", {}, "Incidents, starts and ends"),
        table(heads.map(h => el("th", {}, h)), list.slice(0, TOLD_MOST).map(toldRow)),
        more > 0 ? el("p", { class: "sub" }, "and " + more + " before these") : null);
}

/* ---- charts ---- */

/* uneven: a logarithmic scale is used if the largest value exceeds the median by this factor. */
const LOSS = { title: "Training loss", unit: "nats per token", height: 280, uneven: 3 };
const SERIES = [
    ["norm", { title: "Gradient norm", unit: "before clipping", uneven: 12 }],
    ["lr", { title: "Learning rate", unit: "" }],
    ["samples_s", { title: "Throughput", unit: "samples per second" }],
    ["tflops", { title: "TFLOPs", unit: "of each device" }],
    ["batch", { title: "Batch", unit: "samples", height: 130 }],
    ["scale", { title: "Loss scale", unit: "", height: 150, uneven: 1 }],
];
function isUneven(lines, most) {
    const all = [];
    for (const l of lines) for (const v of l.y) if (v > 0) all.push(v);
    all.sort((a, b) => a - b);
    return all.length > 20 && all[all.length - 1] > most * all[all.length >> 1];
}
function addChart(o) {
    if (!o.lines.length) return;
    const log = Boolean(o.uneven) && isUneven(o.lines, o.uneven);
    view.charts.push(new Chart(Object.assign({ canLog: Boolean(o.uneven), log }, o)));
}
function addSeries(name, o) {
    const lines = [];
    runs.forEach((run, r) => {
        const s = run.series[name], columns = {};
        if (!s) return;
        const rows = s.rows || s.y.map((_, i) => i);
        for (const [axis] of AXES) columns[axis] = run.x[axis] ? rows.map(i => run.x[axis][i]) : null;
        lines.push({ run, name: several ? run.name : o.title.toLowerCase(), hide: run.name, colour: colour(r), columns,
            y: s.y, stretch: rows.map(i => run.stretch[i]) });
    });
    addChart(Object.assign({ lines }, o));
}
function validLine(run, v, name, hide, c) {
    return { run, name, hide, colour: c, columns: v, y: v.y, dots: v.y.length < 150 };
}
/* The sets of one run share a chart; several runs are compared with one chart per set. */
function addValid() {
    const o = { unit: "nats per token", uneven: 2.5 };
    if (!several) {
        const lines = runs[0].valid.map((v, i) => validLine(runs[0], v, v.name, "valid " + v.name, colour(i)));
        const names = lines.length > 1 ? lines.map(l => [l.name, l.colour, l.hide]) : null;
        addChart(Object.assign({ title: "Validation loss", height: 240, lines, names }, o));
        return;
    }
    for (const name of new Set([].concat(...runs.map(r => r.valid.map(v => v.name))))) {
        const lines = [];
        runs.forEach((run, r) => {
            const v = run.valid.find(x => x.name === name);
            if (v) lines.push(validLine(run, v, run.name, run.name, colour(r)));
        });
        addChart(Object.assign({ title: "Validation loss: " + name, lines }, o));
    }
}

/* ---- the page ---- */

const reset = el("button", { class: "reset", type: "button", hidden: "", onclick: () => look(null) }, "all of it");

function drawAll() {
    reset.hidden = !view.range;
    for (const c of view.charts) c.draw();
}
/* Shows a range of the axis; null: the whole axis. */
function look(range) {
    view.range = range;
    drawAll();
}
function axisButtons() {
    const choose = (axis, e) => {
        view.axis = axis;
        for (const b of e.target.parentNode.children) b.setAttribute("aria-pressed", String(b === e.target));
        look(null);
    };
    return el("span", { class: "axis", role: "group", "aria-label": "axis" },
        ...AXES.filter(([a]) => known(a)).map(([axis, name]) => el("button",
            { type: "button", "aria-pressed": String(axis === view.axis), onclick: e => choose(axis, e) }, name)));
}
function build() {
    const main = document.querySelector("main");
    const what = several ? runs.length + " runs, " : runs[0].name !== data.title ? runs[0].name + ", " : "";
    const sub = what + "as of " + date(data.made_s) + " UTC";
    main.replaceChildren(el("h1", {}, data.title), el("p", { class: "sub" }, sub));
    if (data.notes.length) main.append(el("ul", { class: "notes" }, ...data.notes.map(n => el("li", {}, n))));
    main.append(several ? figureTable() : figureCards(runs[0]));
    const names = several ? legend(runs.map((r, i) => [r.name, colour(i), r.name])) : null;
    main.append(el("nav", {}, axisButtons(), ...[names, reset].filter(x => x)));
    if (runs.some(r => Object.keys(r.events).length)) view.charts.push(new Lane());
    addSeries("loss", LOSS);
    addValid();
    for (const s of SERIES) addSeries(...s);
    for (const run of runs) if (run.slow) view.charts.push(new Slow(run));
    for (const area of data.areas) view.charts.push(new Disk(area));
    main.append(...view.charts.map(c => c.section), ...[told()].filter(x => x),
        el("footer", {}, "Drag over a chart to look closer, double-click to see all of it. Of long curves each " +
            "column shows its lowest and its highest value. Made by run-watch report."));
    drawAll();
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
        if (window.innerWidth === width) return;
        width = window.innerWidth;
        drawAll();
    });
}
build();
