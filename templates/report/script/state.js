// What the page shows of the data, one state for all charts and tables, kept in the URL's fragment.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

async function unpacked(id) {
  const text = atob($(`#${id}`).textContent), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const START = {
  section: "", q: "", states: "", sort: "", hide: [], brush: {}, pick: [],
  x: "step", log: null, smooth: 0, sx: "", hx: "", hy: "",
};
let state = structuredClone(START);
let data = null;
let rows = new Map();

function readFragment() {
  const [section, query = ""] = decodeURI(location.hash.slice(1)).split("?");
  const given = new URLSearchParams(query);
  const found = { ...structuredClone(START), section };
  for (const key of ["q", "states", "sort", "x", "sx", "hx", "hy"]) {
    if (given.has(key)) found[key] = given.get(key);
  }
  if (given.has("log")) found.log = given.get("log") === "1";
  found.smooth = Math.min(0.99, Math.max(0, Number(given.get("smooth")) || 0));
  found.pick = (given.get("pick") || "").split(",").map(Number).filter((trial) => rows.has(trial));
  found.hide = (given.get("hide") || "").split(",").filter(Boolean).map(decodeURIComponent);
  if (!["step", "epoch", "wall", "slot_hours"].includes(found.x)) found.x = "step";
  for (const axis of data.trials.axes) {
    const part = given.get(`b.${axis.name}`);
    if (part === null) continue;
    if (axis.kind === "category") {
      if (axis.values.includes(part)) found.brush[axis.name] = part;
    } else {
      const bounds = part.split("|").map((one) => one.split("..").map(Number));
      const right = ([low, high]) => Number.isFinite(low) && Number.isFinite(high);
      if (bounds.every(right)) found.brush[axis.name] = bounds;
    }
  }
  return found;
}

function writeFragment() {
  const said = new URLSearchParams();
  for (const key of ["q", "states", "sort", "x", "sx", "hx", "hy"]) {
    if (state[key] !== START[key]) said.set(key, state[key]);
  }
  if (state.log !== null) said.set("log", state.log ? "1" : "0");
  if (state.smooth) said.set("smooth", state.smooth);
  if (state.pick.length) said.set("pick", state.pick.join(","));
  if (state.hide.length) said.set("hide", state.hide.map(encodeURIComponent).join(","));
  for (const [name, bounds] of Object.entries(state.brush)) {
    said.set(`b.${name}`, typeof bounds === "string" ? bounds : bounds.map((one) => one.join("..")).join("|"));
  }
  const query = said.toString();
  const fragment = `#${state.section}${query ? `?${query}` : ""}`;
  if (fragment !== (location.hash || "#")) history.replaceState(null, "", fragment);
}

const watchers = [];
function watch(keys, draw) {
  watchers.push([new Set(keys), draw]);
}

function change(next) {
  state = { ...state, ...next };
  writeFragment();
  const changed = Object.keys(next);
  for (const [keys, draw] of watchers) if (changed.some((key) => keys.has(key))) draw();
  if (changed.some((key) => FILTERS.has(key))) {
    $("#announce").textContent = `${left().size} of ${rows.size} trials are shown`;
  }
}
const FILTERS = new Set(["q", "states", "brush"]);

function word(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// A category's value as the data names it: the text in the table's cell.
const cellText = new Map();
function category(row, axis) {
  return axis.values.includes(word(row.hyperparameters[axis.name]))
    ? word(row.hyperparameters[axis.name])
    : cellText.get(`${row.trial} ${axis.name}`) ?? "";
}

function inBrush(row, except = "") {
  return data.trials.axes.every((axis) => {
    const bounds = state.brush[axis.name];
    if (bounds === undefined || axis.name === except) return true;
    if (typeof bounds === "string") return category(row, axis) === bounds;
    const value = row.hyperparameters[axis.name];
    return typeof value === "number" && bounds.some(([low, high]) => low <= value && value <= high);
  }) && (state.brush[METRIC] === undefined || except === METRIC
    || state.brush[METRIC].some(([low, high]) => low <= row.best && row.best <= high));
}
const METRIC = "\u0000metric";

function inFilter(row) {
  if (state.states && row.state !== state.states) return false;
  return !state.q || rowText(row).includes(state.q.toLowerCase());
}

const texts = new Map();
function rowText(row) {
  if (!texts.has(row.trial)) {
    const found = [row.trial, row.state, row.why, row.decided, row.best, row.seed];
    for (const [name, value] of Object.entries(row.hyperparameters)) found.push(`${name}=${word(value)}`);
    texts.set(row.trial, found.map(word).join(" ").toLowerCase());
  }
  return texts.get(row.trial);
}

const filtered = () => data.trials.rows.filter(inFilter);
function left() {
  return new Set(filtered().filter((row) => inBrush(row)).map((row) => row.trial));
}
const narrowed = () => Boolean(state.q || state.states || Object.keys(state.brush).length);

function short(value) {
  if (typeof value !== "number") return word(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e7) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A chart for a figure; what it draws is asked for again whenever one of these keys changes.
const charts = [];
function chart(figure, keys, option, more = () => {}) {
  const place = $(".plot", figure);
  const drawn = echarts.init(place, null, { renderer: "canvas" });
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", $("figcaption", figure).textContent.trim());
  const draw = () => {
    drawn.setOption({ animation: false, ...base(), ...option(drawn) }, { notMerge: true });
    more(drawn);
  };
  draw();
  watch(keys, draw);
  charts.push({ drawn, draw });
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== drawn.getWidth()) drawn.resize();
  }).observe(place);
  return drawn;
}

function base() {
  return {
    backgroundColor: "transparent",
    textStyle: { fontFamily: "system-ui, sans-serif", color: colour("ink") },
    tooltip: {
      renderMode: "richText", confine: true, backgroundColor: colour("panel"),
      borderColor: colour("line"), textStyle: { color: colour("ink"), fontSize: 12 },
    },
  };
}

function axis(kind, name, more = {}) {
  const faint = colour("faint");
  return {
    type: kind, name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: faint },
    axisLabel: { color: faint, hideOverlap: true, formatter: kind === "category" ? undefined : short },
    axisLine: { show: true, lineStyle: { color: colour("line") } }, axisTick: { lineStyle: { color: colour("line") } },
    splitLine: { lineStyle: { color: colour("line"), opacity: 0.6 } }, scale: true, ...more,
  };
}

// Black or white, for words on a cell of a sequential scale, at a place from 0, pale, to 1, strong.
function inkOn(share, strong = "high") {
  const parts = (name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16) / 255);
  const high = parts(strong), cell = parts("low").map((one, n) => one + share * (high[n] - one));
  const light = cell.reduce((sum, one, n) => sum + [0.2126, 0.7152, 0.0722][n] * one ** 2.2, 0);
  return { color: light > 0.18 ? "#000000" : "#ffffff" };
}

const spread = (values) => {
  const known = values.filter((value) => typeof value === "number");
  return known.length > 0 && Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) >= 50;
};
