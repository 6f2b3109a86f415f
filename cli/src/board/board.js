// The page of `dittograd board`. What comes from files gets into the page as text only, never as markup.
"use strict";

const main = document.getElementById("main");
const dark = matchMedia("(prefers-color-scheme: dark)");
// Colours that people who are colour-blind tell apart (Okabe and Ito), on light and on dark paper; then the same with dashes.
const COLORS = {
  light: ["#0072b2", "#d55e00", "#00835f", "#b3508a", "#2a8fc4", "#b27b00", "#30363d"],
  dark: ["#56b4e9", "#f08a4b", "#2fc79c", "#dd93bb", "#7f9cff", "#e6b73c", "#d7dce2"],
};
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const TITLES = { loss: "training", lr: "learning rate", ms_per_step: "milliseconds per step", peak_bytes: "memory peak", seconds: "seconds of training", grad_norm: "gradient norms" };
const LOGARITHMIC = ["loss", "grad_norm", "test_relative_l2", "test_rmse", "test_perplexity"];

// With more parameters than this, gradient norms have a plot for each layer.
const MANY = 14;

const runs = new Map(); // rows of the list by number
const chosen = new Set(); // numbers of the runs to compare
const list = { active: null, filter: "", sort: "written", down: true };
let folder = "";
let view = null; // what is shown: { keys, changed(ids), key(event) }

// ---- elements and texts

/** An element; strings become text. */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

function number(x, digits = 4) {
  if (x === null || x === undefined) return "";
  if (!Number.isFinite(x)) return String(x);
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return x.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
  return Number.isInteger(x) ? x.toLocaleString("en") : String(Number(x.toPrecision(digits)));
}

function bytes(n) {
  if (n === null || n === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${Number(n.toPrecision(4))} ${units[at]}`;
}

const short = (text, most = 200) => (text.length > most ? `${text.slice(0, most)}…` : text);
const format = (key, value) => (key === "peak_bytes" ? bytes(value) : number(value));
const title = (key) => (key.startsWith("grad_norm/") ? `${TITLES.grad_norm} of ${key.slice(10)}` : TITLES[key]) || key.replace(/^test_/, "test ").replaceAll("_", " ");
const score = (key) => key.replaceAll("_", " ");
const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString("sv").slice(0, 16) : "");
const nameOf = (id) => (runs.has(id) ? runs.get(id).name : `run ${id}`);

function stepOf(row) {
  if (row.step === null || row.step === undefined) return "";
  return row.steps ? `${number(row.step)} of ${number(row.steps)}` : number(row.step);
}

function badge(row) {
  const [kind, text, why] = row.verified
    ? ["verified", "verified", "dittograd verify has computed this run again, with the same bits."]
    : ["", "unverified", "dittograd verify has not computed this run again here, or it has changed since."];
  return el("span", { class: `badge ${kind}`, title: why }, text);
}

const state = (row) => el("span", { class: `state ${row.state}`, title: row.why || null }, row.state);

/** An answer of the server, or null if the view has changed meanwhile or nothing came. */
async function get(path) {
  const asked = view;
  try {
    const response = await fetch(path);
    if (!response.ok) return null;
    const answer = response.headers.get("Content-Type").includes("json") ? await response.json() : await response.text();
    return asked === view ? answer : null;
  } catch {
    return null;
  }
}

/** The plot of a gradient norm where there are many: its layer, which is its name up to the first number, or to the first dot. */
function layerOf(key) {
  const parts = key.split(".");
  const at = parts.findIndex((part) => /^\d+$/.test(part));
  return parts.slice(0, Math.max(at, 0) + 1).join(".");
}

function table(head, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...rows)));
}

const cell = (text, kind) => el("td", { class: kind, title: text.length > 200 ? short(text, 2000) : null }, short(text));

// ---- curves

const color = (at) => COLORS[dark.matches ? "dark" : "light"][at % 7];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Round numbers between two, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough) || power;
  const all = [];
  for (let i = Math.ceil(low / step); i * step <= high && all.length < 50; i += 1) all.push(i * step);
  return all;
}

function logTicks(low, high) {
  const all = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let p = Math.floor(low); p <= high; p += 1) {
    for (const f of high - low < 2 ? [1, 2, 5] : [1]) {
      const at = p + Math.log10(f);
      if (at >= low && at <= high && (f > 1 || p % every === 0)) all.push(at);
    }
  }
  return all.length > 1 ? all : ticks(low, high, 4);
}

/** Curves over the step. `shared` is what the plots of a view have in common: the axis, the part of it, and the step pointed at. */
class Plot {
  constructor(key, shared) {
    Object.assign(this, { key, shared, lines: [], log: LOGARITHMIC.includes(key.split("/")[0]) });
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.toggle = el("button", { type: "button", "aria-pressed": String(this.log), title: "Logarithmic axis", onclick: () => this.flip() }, "log");
    this.caption = el("span", {}, key === "loss" ? "loss" : title(key));
    this.figure = el("figure", { class: "plot" }, el("figcaption", {}, this.caption, this.toggle), this.canvas, this.legend);
    this.drag = null;
    const c = this.canvas;
    c.addEventListener("pointermove", (e) => { if (this.drag !== null) this.dragged = e.offsetX; this.point(this.stepAt(e.offsetX)); });
    c.addEventListener("pointerleave", () => this.point(null));
    c.addEventListener("pointerdown", (e) => { this.drag = e.offsetX; this.dragged = e.offsetX; c.setPointerCapture(e.pointerId); });
    c.addEventListener("pointerup", () => this.released());
    c.addEventListener("dblclick", () => shared.zoom(null));
    c.addEventListener("keydown", (e) => this.key_(e));
    new ResizeObserver(() => this.draw()).observe(c);
  }

  flip() {
    this.log = !this.log;
    this.toggle.setAttribute("aria-pressed", String(this.log));
    this.draw();
  }

  point(step) {
    this.shared.step = step;
    this.shared.plots.forEach((p) => p.draw());
  }

  stepAt(x) {
    if (!this.frame) return null;
    const { left, right, from, to } = this.frame;
    return from + ((Math.min(Math.max(x, left), right) - left) / (right - left)) * (to - from);
  }

  released() {
    const [a, b] = [this.drag, this.dragged].map((x) => this.stepAt(x)).sort((x, y) => x - y);
    const isWide = Math.abs(this.dragged - this.drag) > 5;
    this.drag = null;
    if (isWide && a !== null && b > a) this.shared.zoom([a, b]);
    else this.draw();
  }

  key_(event) {
    const { from, to } = this.frame || {};
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (from === undefined) return;
    if (move) this.point(Math.min(to, Math.max(from, (this.shared.step ?? (from + to) / 2) + (move * (to - from)) / 50)));
    else if (event.key === "l") this.flip();
    else if (event.key === "+") { const [mid, half] = [this.shared.step ?? (from + to) / 2, (to - from) / 4]; this.shared.zoom([mid - half, mid + half]); }
    else if (event.key === "-") this.shared.zoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Lines: { label, at, dash, x, y }. */
  set(lines) {
    const isSame = lines.length === this.lines.length && lines.every((l, i) => l.label === this.lines[i].label);
    this.lines = lines;
    if (!isSame) {
      this.values = lines.map(() => el("b", {}));
      this.swatches = lines.map(() => el("canvas", { class: "swatch", width: 36, height: 16, "aria-hidden": "true" }));
      this.legend.replaceChildren(...lines.map((l, i) => el("li", {}, this.swatches[i], short(l.label, 80), this.values[i])));
    }
    this.draw();
  }

  draw() {
    const { canvas, lines } = this;
    const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
    if (!width || !lines.length) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const scale = this.log ? (v) => (v > 0 ? Math.log10(v) : NaN) : (v) => v;
    let [low, high] = [Infinity, -Infinity];
    for (const { x, y } of lines) {
      for (let i = 0; i < x.length; i += 1) {
        const v = scale(y[i]);
        if (v < low) low = v;
        if (v > high) high = v;
      }
    }
    let [from, to] = this.shared.range || this.shared.all;
    if (!(to >= from)) [from, to] = [0, 1];
    if (to === from) to = from + 1;
    if (!(high >= low)) [low, high] = [0, 1];
    const free = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    [low, high] = [low - free, high + free];
    const [left, right, top, bottom] = [58, width - 10, 8, height - 20];
    this.frame = { left, right, from, to };
    const px = (step) => left + ((step - from) / (to - from)) * (right - left);
    const py = (v) => bottom - ((v - low) / (high - low)) * (bottom - top);
    g.font = "11px system-ui, sans-serif";
    g.lineWidth = 1;
    g.strokeStyle = css("--line");
    g.fillStyle = css("--faint");
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.beginPath();
    const unit = this.key === "peak_bytes" ? 1024 ** Math.floor(Math.log2(Math.max(1, high)) / 10) : 1;
    for (const v of this.log ? logTicks(low, high) : ticks(low / unit, high / unit, 5).map((t) => t * unit)) {
      g.moveTo(left, py(v));
      g.lineTo(right, py(v));
      g.fillText(format(this.key, this.log ? Number((10 ** v).toPrecision(3)) : Number(v.toPrecision(6))), left - 6, py(v));
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    for (const step of ticks(from, to, Math.max(2, Math.floor((right - left) / 85)))) {
      g.moveTo(px(step), top);
      g.lineTo(px(step), bottom);
      g.fillText(number(step), Math.min(px(step), right - 12), bottom + 5);
    }
    g.stroke();
    g.save();
    g.beginPath();
    g.rect(left, 0, right - left, height);
    g.clip();
    lines.forEach(({ x, y, at, dash }, n) => {
      g.strokeStyle = g.fillStyle = color(at);
      g.lineWidth = 1.6;
      g.lineJoin = "round";
      g.setLineDash(DASHES[dash % DASHES.length]);
      g.beginPath();
      let isOpen = false;
      for (let i = 0; i < x.length; i += 1) {
        const v = scale(y[i]);
        if (Number.isNaN(v)) isOpen = false;
        else if (isOpen) g.lineTo(px(x[i]), py(v));
        else { g.moveTo(px(x[i]), py(v)); isOpen = true; }
      }
      g.stroke();
      g.setLineDash([]);
      if (x.length <= 40) x.forEach((step, i) => { g.beginPath(); g.arc(px(step), py(scale(y[i])), 2.6, 0, 7); g.fill(); });
      const swatch = this.swatches[n].getContext("2d");
      swatch.clearRect(0, 0, 36, 16);
      swatch.strokeStyle = color(at);
      swatch.lineWidth = 4;
      swatch.setLineDash(DASHES[dash % DASHES.length].map((d) => 1.6 * d));
      swatch.beginPath();
      swatch.moveTo(0, 8);
      swatch.lineTo(36, 8);
      swatch.stroke();
    });
    const step = this.shared.step;
    if (step !== null) {
      g.strokeStyle = css("--faint");
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(px(step), top);
      g.lineTo(px(step), bottom);
      g.stroke();
    }
    if (this.drag !== null && this.dragged !== this.drag) {
      g.globalAlpha = 0.15;
      g.fillStyle = css("--accent");
      g.fillRect(this.drag, top, this.dragged - this.drag, bottom - top);
    }
    g.restore();
    const said = lines.map(({ x, y, label }, n) => {
      const at = step === null ? x.length - 1 : nearest(x, step);
      const value = at < 0 ? "" : format(this.key, y[at]);
      this.values[n].textContent = step === null || at < 0 ? value : `${value} at ${number(x[at])}`;
      return `${label} ${value}`;
    });
    canvas.setAttribute("aria-label", `${this.caption.textContent} over steps ${number(from)} to ${number(to)}. ${step === null ? "Last" : "There"}: ${said.slice(0, 12).join(", ")}. Arrow keys move, + zooms in, - shows all, l changes the axis.`);
  }
}

/** The index of the number that is nearest in an ordered list. */
function nearest(list_, x) {
  let [low, high] = [0, list_.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list_[middle] < x) low = middle; else high = middle;
  }
  return high >= 0 && Math.abs(list_[high] - x) < Math.abs(list_[low] - x) ? high : low;
}

/** All plots of some runs: a plot for each group of curves, kept up to date. */
class Plots {
  constructor(ids) {
    this.ids = ids;
    this.element = el("div", { class: "plots" });
    this.byKey = new Map();
    this.shared = { plots: [], range: null, all: [0, 1], step: null, zoom: (range) => { this.shared.range = range; this.load(); } };
    this.isBusy = this.isStale = false;
  }

  /** Asks for the curves; not more often than they come. */
  async load() {
    if (this.isBusy) { this.isStale = true; return; }
    this.isBusy = true;
    const range = this.shared.range;
    const part = range ? `&from=${range[0]}&to=${range[1]}` : "";
    const all = await get(`curves?runs=${this.ids.join(",")}&buckets=${Math.ceil((this.element.clientWidth || 1000) / 2)}${part}`);
    if (all) this.show(all);
    this.isBusy = false;
    if (this.isStale) { this.isStale = false; this.load(); }
  }

  show(all) {
    const groups = new Map();
    for (const { id, curves } of all) {
      const isNorm = (key) => key.startsWith("grad_norm/");
      const byLayer = Object.keys(curves).filter(isNorm).length > MANY;
      for (const key of Object.keys(curves)) {
        const group = key === "test_loss" ? "loss" : byLayer && isNorm(key) ? layerOf(key) : key.split("/")[0];
        if (!groups.has(group)) groups.set(group, []);
        groups.get(group).push({ id, key, x: curves[key][0], y: curves[key][1] });
      }
    }
    const order = (key) => [["loss"], [], ["grad_norm"], ["lr"], ["ms_per_step"], ["peak_bytes"], ["seconds"]].findIndex((l) => l.includes(key.split("/")[0]));
    const rank = (key) => (key.startsWith("test_") ? 1 : order(key) >= 0 ? order(key) : 8);
    const keys = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true }));
    for (const key of keys) {
      if (!this.byKey.has(key)) this.byKey.set(key, new Plot(key, this.shared));
    }
    for (const key of [...this.byKey.keys()].filter((k) => !groups.has(k))) this.byKey.delete(key);
    this.shared.plots = keys.map((key) => this.byKey.get(key));
    const figures = this.shared.plots.map((p) => p.figure);
    if (figures.length !== this.element.children.length || figures.some((f, i) => f !== this.element.children[i])) {
      this.element.replaceChildren(...(figures.length ? figures : [el("p", { class: "faint" }, "Nothing has been measured yet.")]));
    }
    const lines = [...groups.values()].flat().filter((l) => l.x.length);
    if (!this.shared.range && lines.length) {
      this.shared.all = [Math.min(...lines.map((l) => l.x[0])), Math.max(...lines.map((l) => l.x[l.x.length - 1]))];
    }
    const isOne = this.ids.length === 1;
    for (const key of keys) {
      const parts = [...new Set(groups.get(key).map((l) => l.key))];
      this.byKey.get(key).set(groups.get(key).map(({ id, key: name, x, y }) => {
        const [run, part] = [this.ids.indexOf(id), parts.indexOf(name)];
        const rest = key.includes("/") && name.startsWith(`${key}.`) ? key.length : name.indexOf("/");
        const what = name.includes("/") ? name.slice(rest + 1) : title(name);
        const label = isOne ? what : parts.length > 1 ? `${nameOf(id)}, ${what}` : nameOf(id);
        const at = isOne ? part : run;
        return { label, at, dash: isOne ? Math.floor(part / 7) : part + 2 * Math.floor(run / 7), x, y };
      }));
    }
  }
}

// ---- the list

const COLUMNS = [
  ["name", "run", "name", (r) => el("a", { href: `#run/${r.id}`, tabindex: -1 }, r.name)],
  ["state", "state", "", state],
  ["step", "step", "number", (r) => {
    const bar = r.steps && r.state === "running" ? el("progress", { max: r.steps, value: r.step, "aria-label": "progress" }) : null;
    return el("span", {}, bar, bar ? " " : null, stepOf(r));
  }],
  ["loss", "loss", "number", (r) => number(r.loss)],
  ["test", "test loss", "number", (r) => number(r.test)],
  ["scores", "test scores", "", (r) => short(Object.entries(r.scores || {}).filter(([k]) => k !== "loss").map(([k, v]) => `${score(k)} ${number(v)}`).join(", "), 60)],
  ["fingerprint", "fingerprint", "", (r) => el("span", {}, el("span", { class: "mono" }, r.fingerprint || ""), " ", r.fingerprint ? badge(r) : null)],
  ["ms_per_step", "ms/step", "number", (r) => number(r.ms_per_step, 3)],
  ["peak_bytes", "memory", "number", (r) => bytes(r.peak_bytes)],
  ["model", "model", "", (r) => short(r.model || "", 24)],
  ["data", "data", "", (r) => short(r.data || "", 24)],
  ["optimizer", "optimizer", "", (r) => short(r.optimizer || "", 24)],
  ["lr", "lr", "number", (r) => (typeof r.lr === "number" ? number(r.lr) : r.lr || "")],
  ["batch", "batch", "number", (r) => number(r.batch)],
  ["seed", "seed", "number", (r) => (r.seed === undefined ? "" : String(r.seed))],
  ["written", "written", "faint", (r) => when(r.written).slice(5)],
];

function listView() {
  const body = el("tbody", {});
  const rows = new Map();
  const count = el("span", { role: "status", class: "faint" });
  const search = el("input", { type: "search", placeholder: "filter: words, or lr=0.01", "aria-label": "Filter runs", oninput: () => { list.filter = search.value; refresh(); } });
  search.value = list.filter;
  const compare = el("button", { type: "button", onclick: () => openChosen("compare") }, "Compare");
  const differ = el("button", { type: "button", onclick: () => openChosen("diff") }, "Diff two");
  const none = el("button", { type: "button", onclick: () => { [...chosen].forEach(choose); refresh(); } }, "Clear selection");
  const heads = COLUMNS.map(([key, name, kind]) => el("th", { scope: "col", class: kind },
    el("button", { type: "button", onclick: () => { [list.sort, list.down] = [key, list.sort === key ? !list.down : ["loss", "test", "written", "fingerprint"].includes(key) ? key === "written" : false]; refresh(); } }, name)));
  const grid = el("table", { class: "list", role: "grid", "aria-label": "Runs", "aria-multiselectable": "true" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "unseen" }, "selected")), ...heads)), body);
  const empty = el("div", { class: "message" });
  main.replaceChildren(el("div", { class: "bar" }, search, compare, differ, none, count), el("div", { class: "scroll" }, grid), empty);

  function matches(row) {
    return list.filter.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
      const [key, value] = word.split("=");
      if (value !== undefined) return String(row[key] ?? "").toLowerCase() === value;
      return [row.name, row.state, row.model, row.data, row.optimizer, row.fingerprint].some((t) => t && String(t).toLowerCase().includes(word));
    });
  }

  function fill(tr, row) {
    const box = el("input", { type: "checkbox", tabindex: -1, "aria-label": `Select ${row.name}`, onclick: () => { choose(row.id); refresh(); } });
    box.checked = chosen.has(row.id);
    tr.replaceChildren(el("td", {}, box), ...COLUMNS.map(([, , kind, show]) => el("td", { class: kind }, show(row))));
    tr.shown = row;
  }

  function choose(id) {
    if (!chosen.delete(id)) chosen.add(id);
    const tr = rows.get(id);
    if (tr) fill(tr, runs.get(id));
  }

  function activate(id, isFocused) {
    const old = rows.get(list.active);
    if (old) old.tabIndex = -1;
    list.active = id;
    const tr = rows.get(id);
    if (!tr) return;
    tr.tabIndex = 0;
    if (isFocused) { tr.focus(); tr.scrollIntoView({ block: "nearest" }); }
  }

  const ids = () => [...body.children].map((tr) => tr.shown.id);

  function refresh() {
    const shown = [...runs.values()].filter(matches);
    const sign = list.down ? -1 : 1;
    const has = (v) => v !== null && v !== undefined && v !== "";
    shown.sort((a, b) => {
      const [x, y] = [a[list.sort], b[list.sort]];
      if (has(x) !== has(y)) return has(x) ? -1 : 1;
      if (x === y) return a.id - b.id;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    });
    for (const id of [...rows.keys()].filter((n) => !runs.has(n))) rows.delete(id);
    const trs = shown.map((row) => {
      if (!rows.has(row.id)) {
        rows.set(row.id, el("tr", { tabindex: -1, onfocus: () => activate(row.id, false), ondblclick: () => { location.hash = `run/${row.id}`; } }));
      }
      const tr = rows.get(row.id);
      if (tr.shown !== row) fill(tr, row);
      tr.setAttribute("aria-selected", String(chosen.has(row.id)));
      return tr;
    });
    if (trs.length !== body.children.length || trs.some((tr, i) => tr !== body.children[i])) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      body.replaceChildren(...trs);
      if (focused && focused.isConnected) focused.focus({ preventScroll: true });
    }
    if (!rows.has(list.active) || !rows.get(list.active).isConnected) activate(shown.length ? shown[0].id : null, false);
    else activate(list.active, false);
    heads.forEach((th, i) => {
      const isIt = COLUMNS[i][0] === list.sort;
      if (isIt) th.setAttribute("aria-sort", list.down ? "descending" : "ascending"); else th.removeAttribute("aria-sort");
      th.firstChild.textContent = COLUMNS[i][1] + (isIt ? (list.down ? " ↓" : " ↑") : "");
    });
    const running = [...runs.values()].filter((r) => r.state === "running").length;
    count.textContent = `${shown.length === runs.size ? "" : `${shown.length} of `}${runs.size} runs${running ? `, ${running} running` : ""}${chosen.size ? `, ${chosen.size} selected` : ""}`;
    compare.disabled = chosen.size < 1;
    differ.disabled = chosen.size !== 2;
    none.disabled = chosen.size === 0;
    grid.hidden = runs.size === 0;
    empty.replaceChildren(...(runs.size ? [] : [el("p", {}, "There are no runs in this folder yet. Begin one, and it appears here:"), el("pre", {}, `dittograd train mlp --out ${folder}/mlp`)]));
  }

  function openChosen(what) {
    const all = [...chosen];
    if (what === "diff" ? all.length === 2 : all.length) location.hash = `${what}/${all.join(",")}`;
  }

  refresh();
  return {
    place: folder,
    keys: [["↑ ↓", "move"], ["Enter", "open"], ["Space", "select"], ["c", "compare"], ["d", "diff two"], ["/", "filter"], ["Esc", "clear"]],
    changed: refresh,
    focus: () => activate(list.active, true),
    key(event) {
      const all = ids();
      const at = all.indexOf(list.active);
      const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1, PageDown: at + 20, PageUp: at - 20 };
      if (event.key in moves && all.length) activate(all[Math.min(all.length - 1, Math.max(0, moves[event.key]))], true);
      else if (event.target.closest("button, input, a") && ["Enter", " "].includes(event.key)) return false;
      else if (event.key === "Enter" && list.active !== null) location.hash = `run/${list.active}`;
      else if (event.key === " " && list.active !== null) { choose(list.active); refresh(); activate(list.active, true); }
      else if (event.key === "d") openChosen("diff");
      else if (event.key === "c") openChosen("compare");
      else if (event.key === "/") search.focus();
      else if (event.key === "Escape") { search.value = list.filter = ""; refresh(); activate(list.active, true); }
      else return false;
      return true;
    },
  };
}

// ---- one run

function runView(id) {
  const plots = new Plots([id]);
  const head = el("h1", {});
  const facts = el("dl", { class: "facts" });
  const more = el("div", {});
  let shown = "";
  const compiled = el("a", { href: `#program/${id}` }, "Program");
  main.replaceChildren(head, facts, el("div", { class: "bar" }, compiled, el("a", { href: `csv?run=${id}`, download: "" }, "Measurements as CSV")), plots.element, more);

  function top() {
    const row = runs.get(id);
    if (!row) { head.replaceChildren(`run ${id}`); facts.replaceChildren(el("p", { class: "error" }, "This run is not there, or not any more.")); return; }
    head.replaceChildren(row.name, state(row), el("span", { class: "mono" }, row.fingerprint || ""), badge(row));
    const all = [["step", stepOf(row)], ["loss", number(row.loss)],
      ...Object.entries(row.scores || {}).map(([k, v]) => [`test ${score(k)}`, number(v)]),
      ["best at step", number(row.best_step)], ["ms per step", number(row.ms_per_step, 3)], ["memory peak", bytes(row.peak_bytes)],
      ["model", row.model || ""], ["data", row.data || ""], ["parameters", number(row.parameters)], ["last written", when(row.written)]];
    facts.replaceChildren(...all.filter(([, v]) => v).map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, short(v)))));
    if (row.why) facts.append(el("p", { class: "error" }, row.why));
  }

  async function details() {
    const all = await get(`run?run=${id}`);
    if (!all) return;
    const pairs = (list_) => (list_ || []).map(([k, v]) => el("tr", {}, el("th", { scope: "row" }, short(k)), cell(v, "value mono")));
    const stems = new Set();
    const names = all.files.map(([name]) => name);
    const pictures = [...names.filter((n) => n.endsWith(".png")), ...names.filter((n) => n.endsWith(".svg"))].filter((n) => {
      const stem = n.slice(0, -4);
      return !stems.has(stem) && stems.add(stem);
    });
    const url = (name) => `file?run=${id}&name=${encodeURIComponent(name)}&of=${all.written}`;
    const texts = names.filter((n) => n.endsWith(".txt")).slice(0, 8);
    const shownTexts = await Promise.all(texts.map(async (n) => [n, await get(url(n))]));
    const sections = [el("section", {}, el("h2", {}, "Settings"), table(["name", "value"], pairs(all.settings)))];
    if (all.record) {
      sections.push(el("section", {}, el("h2", {}, "Record: first line"), table(["name", "value"], pairs(all.record.head)), el("h2", {}, "Record: last line"), table(["name", "value"], pairs(all.record.last))));
    }
    sections.push(el("section", {}, el("h2", {}, "Files"), table(["name", "size"], all.files.map(([n, size]) => el("tr", {}, cell(n), cell(bytes(size), "number")))),
      all.state === "stopped" && all.settings ? el("div", {}, el("h2", {}, "Go on with"), el("pre", {}, all.resume)) : null));
    more.replaceChildren(
      ...(pictures.length ? [el("h2", {}, "Pictures"), el("div", { class: "pictures" }, ...pictures.slice(0, 50).map((n) => el("figure", {}, el("a", { href: url(n), target: "_blank", rel: "noopener" }, el("img", { src: url(n), alt: n, loading: "lazy" })), el("figcaption", {}, n))))] : []),
      ...shownTexts.filter(([, text]) => typeof text === "string").flatMap(([n, text]) => [el("h2", {}, n), el("pre", { tabindex: 0 }, text)]),
      el("div", { class: "columns" }, ...sections));
  }

  function changed(ids) {
    if (!ids.has(id)) return;
    top();
    const row = runs.get(id);
    const now = row ? `${row.state} ${row.fingerprint}` : "";
    if (row && now !== shown) details();
    if (row) plots.load();
    shown = now;
  }

  return {
    place: "", keys: [["Esc", "back to the list"], ["p", "program"], ["Tab", "plots"], ["← →", "values"], ["drag or +", "zoom"], ["l", "log"]],
    start: () => changed(new Set([id])), changed, focus: () => main.focus({ preventScroll: true }),
    key: (event) => event.key === "p" && (location.hash = `program/${id}`),
  };
}

// ---- several runs

function compareView(ids) {
  const plots = new Plots(ids);
  const settings = el("div", {});
  const two = ids.length === 2 ? el("a", { href: `#diff/${ids.join(",")}` }, "Diff of the two") : null;
  main.replaceChildren(el("h1", {}, `${ids.length} runs`), el("div", { class: "bar" }, two), plots.element, settings);

  async function details() {
    const all = (await Promise.all(ids.map((id) => get(`run?run=${id}`)))).filter(Boolean);
    const maps = all.map((run) => new Map([
      ["state", run.state], ["step", stepOf(run)], ["loss", number(run.loss)], ...Object.entries(run.scores || {}).map(([k, v]) => [`test ${score(k)}`, number(v)]),
      ["ms per step", number(run.ms_per_step, 3)], ["memory peak", bytes(run.peak_bytes)], ["fingerprint", run.fingerprint || ""], ["verified", run.verified ? "verified" : "unverified"],
      ...(run.settings || []),
    ]));
    const names = [...new Set(maps.flatMap((m) => [...m.keys()]))];
    const rows = names.map((name) => {
      const values = maps.map((m) => m.get(name) || "");
      const differs = values.some((v) => v !== values[0]);
      return [differs, el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, short(name)), ...values.map((v) => cell(v, "value mono")))];
    });
    const show = (isAll) => table(["", ...all.map((r) => r.name)], rows.filter(([differs]) => isAll || differs).map(([, tr]) => tr));
    const place = el("div", {}, show(false));
    const toggle = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const isAll = toggle.getAttribute("aria-pressed") === "false";
      toggle.setAttribute("aria-pressed", String(isAll));
      place.replaceChildren(show(isAll));
    } }, "also what is the same");
    settings.replaceChildren(el("h2", {}, "What differs ", toggle), place);
  }

  return {
    place: ids.map(nameOf).join(" · "), keys: [["Esc", "back to the list"], ...(two ? [["d", "diff"]] : []), ["Tab", "plots"], ["← →", "values"], ["drag or +", "zoom"], ["l", "log"]],
    start: () => { plots.load(); details(); },
    changed: (changed) => { if (ids.some((id) => changed.has(id))) plots.load(); },
    focus: () => main.focus({ preventScroll: true }),
    key: (event) => event.key === "d" && two && (location.hash = `diff/${ids.join(",")}`),
  };
}

function diffView(ids) {
  const body = el("div", {}, el("p", { class: "faint", role: "status" }, "Comparing every tensor…"));
  const [a, b] = ids.map(nameOf);
  main.replaceChildren(el("h1", {}, "Diff"), el("p", {}, "A is ", el("a", { href: `#run/${ids[0]}` }, a), ", B is ", el("a", { href: `#run/${ids[1]}` }, b)), body);

  async function start() {
    const all = await get(`diff?runs=${ids.join(",")}`);
    if (!all) return body.replaceChildren(el("p", { class: "error" }, "There is no answer: one of the runs is gone."));
    if (all.error) return body.replaceChildren(el("p", { class: "error" }, all.error));
    const three = (what, head, rows) => (rows && rows.length ? [el("h2", {}, what), table([head, "A", "B"], rows.map((r) => el("tr", {}, cell(r.name), cell(r.a, "value mono"), cell(r.b, "value mono"))))] : []);
    const tensors = all.tensors_differing || [];
    body.replaceChildren(
      el("p", {}, all.same ? `The same: ${all.tensors_same} tensors, all settings and measurements.` : `${tensors.length} tensors differ, ${all.tensors_same} are the same, ${(all.tensors_unlike || []).length} are not in both with one type and shape.`),
      ...three("Settings", "setting", all.settings),
      ...three(`Measurements of step ${number(all.first_step)}, the first that differs`, "measurement", all.measurements),
      ...three("Tensors of other types or shapes", "tensor", all.tensors_unlike),
      ...(tensors.length ? [el("h2", {}, "Tensors, those first that are furthest off"), table(["tensor", "elements", "differ", "ulps", "at", "A", "B"], tensors.slice(0, 500).map((t) => el("tr", {},
        cell(t.name), cell(t.kind), cell(`${t.differing} of ${t.elements}`, "number"), cell(number(t.ulps), "number"), cell(`[${t.at.join(", ")}]`), cell(t.a, "mono"), cell(t.b, "mono"))))] : []));
    return undefined;
  }

  return { place: `${a} · ${b}`, keys: [["Esc", "back to the list"]], start, changed: () => {}, focus: () => main.focus({ preventScroll: true }), key: () => false };
}

// ---- the program of a run

const DRAWN = new Set(["svg", "g", "title", "rect", "path", "text"]);

/** A copy of a drawing with what a drawing needs and nothing else. */
function drawing(from) {
  const to = document.createElementNS("http://www.w3.org/2000/svg", from.localName);
  for (const { name, value } of from.attributes) if (!/^on|href|style|xmlns/i.test(name)) to.setAttribute(name, value);
  for (const child of from.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) to.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE && DRAWN.has(child.localName)) to.append(drawing(child));
  }
  return to;
}

function programView(id, isCompiled) {
  const frame = el("div", { class: "drawing", tabindex: 0, role: "img", "aria-label": "The program of the run. Arrow keys move it, + and - zoom, 0 shows all." });
  const other = el("a", { href: isCompiled ? `#program/${id}` : `#program/${id}/compiled` }, isCompiled ? "As it is written" : "As it runs, after all passes");
  const save = el("a", { href: `program?run=${id}${isCompiled ? "&compiled=1" : ""}`, download: "program.svg" }, "SVG");
  main.replaceChildren(el("h1", {}, `Program of ${nameOf(id)}`), el("div", { class: "bar" }, other, save, el("span", { class: "faint" }, "for one row, in evaluation")), frame);
  let [svg, all, box] = [null, null, null];

  const show = () => svg && svg.setAttribute("viewBox", box.join(" "));
  function zoom(factor, x = 0.5, y = 0.5) {
    if (!box) return;
    const f = Math.min(Math.max(factor, all[2] / 200000 / box[2]), (4 * Math.max(all[2], all[3])) / Math.min(box[2], box[3]));
    box = [box[0] + box[2] * (1 - f) * x, box[1] + box[3] * (1 - f) * y, box[2] * f, box[3] * f];
    show();
  }
  const move = (x, y) => { if (box) { box[0] += x * box[2]; box[1] += y * box[3]; show(); } };
  /** Pixels of one unit of the drawing, which is as large as fits. */
  const pixels = () => Math.min(frame.clientWidth / box[2], frame.clientHeight / box[3]);
  frame.addEventListener("wheel", (e) => {
    e.preventDefault();
    const place = frame.getBoundingClientRect();
    zoom(e.deltaY > 0 ? 1.15 : 1 / 1.15, (e.clientX - place.left) / place.width, (e.clientY - place.top) / place.height);
  }, { passive: false });
  frame.addEventListener("pointerdown", (e) => frame.setPointerCapture(e.pointerId));
  frame.addEventListener("pointermove", (e) => { if (e.buttons && box) { box[0] -= e.movementX / pixels(); box[1] -= e.movementY / pixels(); show(); } });

  function fit() {
    box = [...all];
    // A long program is read from its top, at a size that can be read.
    const least = 0.7;
    if (pixels() < least) {
      const [w, h] = [Math.min(all[2], frame.clientWidth / least), Math.min(all[3], frame.clientHeight / least)];
      box = [all[0] + (all[2] - w) / 2, all[1], w, h];
    }
    show();
  }

  async function start() {
    const answer = await get(`program?run=${id}${isCompiled ? "&compiled=1" : ""}`);
    if (typeof answer !== "string") {
      frame.replaceWith(el("p", { class: "error" }, (answer && answer.error) || "There is no drawing: the run is gone."));
      return;
    }
    svg = drawing(new DOMParser().parseFromString(answer, "image/svg+xml").documentElement);
    all = svg.getAttribute("viewBox").split(" ").map(Number);
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    frame.replaceChildren(svg);
    fit();
    frame.focus({ preventScroll: true });
  }

  return {
    place: "", keys: [["Esc", "back to the run"], ["+ -", "zoom"], ["↑ ↓ ← →", "move"], ["0", "all of it"]],
    start, changed: () => {}, focus: () => frame.focus({ preventScroll: true }), back: `run/${id}`,
    key(event) {
      const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (moves[event.key]) move(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") zoom(1 / 1.25);
      else if (event.key === "-") zoom(1.25);
      else if (event.key === "0" && all) { box = [...all]; show(); }
      else return false;
      return true;
    },
  };
}

// ---- the page

function route() {
  const [what, numbers = "", more] = location.hash.slice(1).split("/");
  const ids = numbers.split(",").filter((n) => /^\d+$/.test(n)).map(Number);
  const views = { run: () => runView(ids[0]), program: () => programView(ids[0], more === "compiled"), compare: () => compareView(ids), diff: () => diffView(ids) };
  const isGood = what in views && ids.length >= 1 && (what !== "diff" || ids.length === 2);
  view = null;
  view = isGood ? views[what]() : listView();
  document.getElementById("place").textContent = view.place;
  document.title = isGood ? `${ids.map(nameOf).join(", ")} – dittograd` : "dittograd board";
  document.getElementById("keys").replaceChildren(...view.keys.flatMap(([key, does]) => [el("kbd", {}, key), ` ${does}   `]));
  view.focus();
  if (view.start) view.start();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !view) return;
  const isTyping = event.target.matches("input[type=search]");
  if (isTyping && !["Escape", "ArrowDown", "Enter"].includes(event.key)) return;
  if (isTyping && event.key !== "Escape") { view.focus(); event.preventDefault(); return; }
  if (view.key(event)) event.preventDefault();
  else if (event.key === "Escape") location.hash = view.back || "";
});
addEventListener("hashchange", route);
dark.addEventListener("change", () => { if (view) route(); });

/** Takes in the list or a change of it. */
function take({ rows, gone, folder: where }, isAll) {
  if (isAll) runs.clear();
  folder = where;
  for (const row of rows) runs.set(row.id, { ...row, test: row.scores ? row.scores.loss : null });
  for (const id of gone) { runs.delete(id); chosen.delete(id); }
  if (isAll || !view) route(); else view.changed(new Set([...rows.map((r) => r.id), ...gone]));
}

// The token stays out of the address, of bookmarks and of what is copied from there.
history.replaceState(null, "", location.pathname + location.hash);
const events = new EventSource("events");
const link = document.getElementById("link");
events.addEventListener("list", (e) => { link.textContent = "live"; take(JSON.parse(e.data), true); });
events.addEventListener("change", (e) => take(JSON.parse(e.data), false));
events.addEventListener("error", () => { link.textContent = "the board has ended: start it again with `dittograd board`"; });
