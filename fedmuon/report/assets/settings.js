// What the settings do: bars of all groups, and heat maps over two settings.

const MEASURES = {
  last: ["last round", (g) => g.last, score],
  best: ["best by validation", (g) => g.best, score],
  rounds: ["rounds to the target", (g) => g.efforts[state.target]?.rounds || [null, null], number],
};

const shortKey = (key) => (key.endsWith(".name") ? key.slice(0, -5) : key);
const absent = "–";
const valueOf = (group, key) => (key in group.settings ? String(group.settings[key]) : absent);
const valuesOf = (key) => [...new Set(data.groups.map((group) => valueOf(group, key)))].toSorted((a, b) => a.localeCompare(b, "en", { numeric: true }) || 0)
  .toSorted((a, b) => (isNaN(a) || isNaN(b) ? 0 : a - b));

// The pairs of settings whose values make a table with most cells filled; two rates before an algorithm's name.
function bestPair(keys) {
  let found = null;
  for (const y of keys) for (const x of keys) {
    if (x === y || keys.indexOf(x) < keys.indexOf(y)) continue;
    const cells = new Set(data.groups.map((group) => `${valueOf(group, x)}\n${valueOf(group, y)}`)).size;
    const filled = cells / (valuesOf(x).length * valuesOf(y).length);
    const named = x.endsWith(".name") + y.endsWith(".name");
    const worth = (cells * filled ** 2) / (1 + 2 * named);
    if (valuesOf(x).length > 1 && valuesOf(y).length > 1 && cells >= 4 && filled > 0.5 && (!found || worth > found.worth)) found = { x, y, worth };
  }
  return found;
}

function renderSettings() {
  const keys = data.keys, pair = bestPair(keys);
  const measures = Object.entries(MEASURES).filter(([key]) => key !== "rounds" || data.targets.length).map(([key, [title]]) => [key, title]);
  $("settings").hidden = data.groups.length < 2;
  if ($("settings").hidden) return;
  if (!keys.includes(state.mapX)) state.mapX = pair?.x;
  if (!keys.includes(state.mapY)) state.mapY = pair?.y;
  const options = keys.map((key) => [key, shortKey(key)]);
  $("settings-controls").replaceChildren(
    select("measure", "show", measures, state.measure, (value) => change({ measure: value })),
    ...(pair ? [select("map-x", "across", options, state.mapX, (value) => change(value === state.mapY ? { mapX: value, mapY: state.mapX } : { mapX: value })),
      select("map-y", "down", options, state.mapY, (value) => change(value === state.mapX ? { mapY: value, mapX: state.mapY } : { mapY: value }))] : []));
  const cards = [];
  const bars = data.groups.length <= 60;
  if (bars) cards.push(figure("bars", MEASURES[state.measure][0], "Bars of all groups", 56 + 30 * data.groups.length));
  const facets = pair ? facetsOf(state.mapX, state.mapY) : [];
  facets.forEach((facet, i) => cards.push(figure(`map-${i}`, facet.title, `Heat map of ${facet.title}`, 90 + 44 * valuesOf(state.mapY).length)));
  $("settings-body").replaceChildren(el("div", { class: "settings-grid" }, cards));
  if (bars) drawBars();
  facets.forEach((facet, i) => drawMap(`map-${i}`, facet.groups));
}

function facetsOf(x, y) {
  const rest = data.keys.filter((key) => key !== x && key !== y);
  const found = new Map();
  for (const group of data.groups) {
    const title = rest.filter((key) => key in group.settings).map((key) => `${shortKey(key)}=${group.settings[key]}`).join(", ");
    found.set(title, [...(found.get(title) || []), group]);
  }
  const facets = [...found].map(([title, groups]) => ({ title: [MEASURES[state.measure][0], title].filter(Boolean).join(": "), groups }));
  return facets.filter((facet) => facet.groups.length > 1).slice(0, 12);
}

function drawBars() {
  const [, value, form] = MEASURES[state.measure];
  const up = state.measure === "rounds" ? false : data.metric.higher;
  const shown = data.groups.filter((group) => isNumber(value(group)[0])).sort((a, b) => (up ? 1 : -1) * (value(a)[0] - value(b)[0]));
  const percents = data.metric.percent && state.measure !== "rounds";
  draw("bars", [{
    type: "bar", orientation: "h", y: shown.map((_, i) => i), x: shown.map((group) => value(group)[0]),
    marker: { color: shown.map((group) => look(data.groups.indexOf(group)).colour) },
    error_x: { type: "data", array: shown.map((group) => value(group)[1] ?? undefined), color: css("--ink"), thickness: 1.2, width: 4 },
    text: shown.map((group) => meanAndDeviation(value(group), form) + some(value(group), group)), textposition: "inside", insidetextanchor: "start", textangle: 0,
    insidetextfont: { color: dark() ? "#101317" : "#ffffff" }, hovertext: shown.map((group) => escaped(group.label)), hovertemplate: "%{hovertext}: %{text}<extra></extra>",
  }], layout({
    bargap: 0.25, margin: { l: 20, r: 16, t: 6, b: 30 },
    yaxis: { automargin: true, showgrid: false, ticksuffix: "  ", tickvals: shown.map((_, i) => i), ticktext: shown.map((group) => brief(group.label)) },
    xaxis: { rangemode: "tozero", tickformat: percents ? ".0%" : undefined },
  }));
}

function drawMap(id, groups) {
  const [, value, form] = MEASURES[state.measure];
  const xs = valuesOf(state.mapX), ys = valuesOf(state.mapY);
  const cell = (y, x) => groups.find((group) => valueOf(group, state.mapX) === x && valueOf(group, state.mapY) === y);
  const z = ys.map((y) => xs.map((x) => { const found = cell(y, x); return found ? value(found)[0] : null; }));
  const text = ys.map((y) => xs.map((x) => { const found = cell(y, x); return found && isNumber(value(found)[0]) ? meanAndDeviation(value(found), form) : ""; }));
  const names = (values) => ({ showgrid: false, automargin: true, tickvals: values.map((_, i) => i), ticktext: values.map(brief) });
  draw(id, [{
    type: "heatmap", z, text, customdata: ys.map((y) => xs.map((x) => `${escaped(shortKey(state.mapX))} ${escaped(x)}<br>${escaped(shortKey(state.mapY))} ${escaped(y)}`)), texttemplate: "%{text}", colorscale: "Cividis", xgap: 2, ygap: 2, showscale: false,
    reversescale: state.measure === "rounds" || !data.metric.higher,
    hovertemplate: "%{customdata}<br>%{text}<extra></extra>",
  }], layout({
    margin: { l: 20, r: 12, t: 6, b: 40 },
    xaxis: { ...names(xs), title: { text: escaped(shortKey(state.mapX)), standoff: 6 } },
    yaxis: { ...names(ys), title: { text: escaped(shortKey(state.mapY)), standoff: 6 }, autorange: "reversed" },
  }));
}
