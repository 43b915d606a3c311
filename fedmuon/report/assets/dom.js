// Elements, numbers as text, and the looks of the groups. Text always goes in as text, never as HTML.

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

// Plotly reads a little HTML in its texts.
const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function look(group) {
  const colours = data.palette[dark() ? "dark" : "light"], dashes = data.palette.dashes;
  return { colour: colours[group % colours.length], dash: dashes[Math.floor(group / colours.length) % dashes.length] };
}

function faint(colour, share) {
  return colour + Math.round(255 * share).toString(16).padStart(2, "0");
}

function swatch(group) {
  const { colour, dash } = look(group);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const strokes = { solid: "", dash: "6 3", dot: "2 3", dashdot: "7 3 2 3" };
  for (const [k, v] of Object.entries({ class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" })) svg.setAttribute(k, v);
  for (const [k, v] of Object.entries({ x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour, "stroke-width": 3.5, "stroke-dasharray": strokes[dash] })) line.setAttribute(k, v);
  svg.append(line);
  return svg;
}

const isNumber = (value) => typeof value === "number" && isFinite(value);

function number(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(1);
  const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, Math.min(6, digits - 1 - size)) });
}

// A value of the metric: shares in per cent.
function score(value) {
  if (!isNumber(value)) return "–";
  return data.metric.percent ? (100 * value).toFixed(1) : number(value, 4);
}

// The deviation has as many decimals as the mean.
function meanAndDeviation([mean, deviation], form) {
  const text = form(mean);
  if (!isNumber(deviation)) return text;
  const decimals = text.split(".")[1]?.length ?? 0;
  return `${text} ± ${form === score ? form(deviation) : deviation.toFixed(decimals)}`;
}

// " (2 of 3)", where a mean is not over all runs of its group.
const some = (spread, group) => (spread[2] > 0 && spread[2] < group.runs.length ? ` (${spread[2]} of ${group.runs.length})` : "");

const percent = () => (data.metric.percent ? ", %" : "");

// Names that fit beside a figure.
function brief(text) {
  const most = innerWidth < 700 ? 16 : 40;
  return escaped(text.length > most ? `${text.slice(0, most - 1)}…` : text);
}

const target = (value) => (data.metric.percent ? `${number(100 * value)} %` : number(value));

function select(id, title, options, value, change) {
  const chosen = options.some(([key]) => String(key) === String(value)) ? value : options[0]?.[0];
  const made = el("select", { id, onchange: (event) => change(event.target.value) },
    options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(chosen) }, text)));
  return el("label", {}, title, made);
}

function check(id, title, value, change) {
  return el("label", {}, el("input", { type: "checkbox", id, checked: value, onchange: (event) => change(event.target.checked) }), title);
}

function segments(title, options, value, change) {
  return el("div", { class: "segments", role: "group", "aria-label": title },
    options.map(([key, text]) => el("button", { type: "button", id: `${title}-${key}`.replaceAll(" ", "-"), "aria-pressed": String(key === value), onclick: () => change(key) }, text)));
}
