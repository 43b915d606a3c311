// What all figures share, and the curves.

function layout(more = {}) {
  const axis = { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, tickfont: { color: css("--dim") } };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    font: { family: "system-ui, sans-serif", size: 12, color: css("--ink") },
    margin: { l: 48, r: 12, t: 6, b: 42 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 }, namelength: 60, align: "left" },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

const plotConfig = {
  displaylogo: false, responsive: true, showTips: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  toImageButtonOptions: { format: "svg", filename: "fedmuon" },
};

function draw(id, traces, shape) {
  return Plotly.react(id, traces, shape, plotConfig);
}

// A card with a place for a figure; the figure is described for those who do not see it.
function figure(id, title, description, height, more = {}) {
  const style = height ? `height:${height}px` : null;
  return el("figure", { class: "card", style: "margin:0", ...more }, title ? el("h3", {}, title) : null,
    el("div", { class: "plot", id, style, role: "img", "aria-label": description || title }));
}

// Exponential moving average, without the bias of its first values; gaps stay gaps.
function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0, mass = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

function curveTraces(key) {
  const traces = [];
  const share = key === data.metric.key && data.metric.percent;
  data.groups.forEach((group, index) => {
    const curve = data.curves[index], found = curve.series[key];
    if (!found || !shows(group)) return;
    const { colour, dash } = look(index);
    const there = curve.round.map((_, i) => i).filter((i) => isNumber(found.mean[i]));
    const x = there.map((i) => curve[state.x][i]);
    const of = (values) => smooth(there.map((i) => values[i]), state.smooth);
    const mean = of(found.mean);
    if (found.dev && state.band) {
      const dev = of(found.dev);
      const low = mean.map((m, i) => (state.logy ? Math.max(m - dev[i], m / 20) : m - dev[i]));
      traces.push({
        x: [...x, ...x.toReversed()], y: [...mean.map((m, i) => m + dev[i]), ...low.toReversed()],
        fill: "toself", fillcolor: faint(colour, 0.16), line: { width: 0 }, hoverinfo: "skip", mode: "lines",
      });
    }
    for (const run of (state.seeds && found.runs) || [])
      traces.push({ x, y: of(run), mode: "lines", line: { color: faint(colour, 0.45), width: 1 }, hoverinfo: "skip" });
    traces.push({
      x, y: mean, name: escaped(group.label), mode: x.length < 3 ? "lines+markers" : "lines", line: { color: colour, dash, width: 2.2 },
      hovertemplate: `%{y:${share ? ".1%" : ".4~g"}}`,
    });
  });
  return traces;
}

const AXES = { round: "communication round", mb: "megabytes sent, up and down, all clients", s: "seconds" };

function drawCurves() {
  const visible = data.groups.filter(shows).length;
  for (const [i, [key]] of data.series.entries()) {
    const share = key === data.metric.key && data.metric.percent;
    const type = (log) => (log ? "log" : "linear");
    draw(`chart-${i}`, curveTraces(key), layout({
      hovermode: visible <= 12 && state.x === "round" ? "x unified" : "closest",
      xaxis: { title: { text: AXES[state.x], standoff: 8, font: { size: 12, color: css("--dim") } }, type: type(state.logx) },
      yaxis: { type: type(state.logy), tickformat: share ? ".0%" : undefined, hoverformat: share ? ".1%" : undefined },
    }));
  }
}

function renderCurves() {
  const set = (key) => (value) => change({ [key]: value });
  $("controls").replaceChildren(
    segments("horizontal axis", [["round", "rounds"], ["mb", "megabytes"], ["s", "seconds"]], state.x, set("x")),
    check("log-x", "log x", state.logx, set("logx")),
    check("log-y", "log y", state.logy, set("logy")),
    el("label", {}, "smoothing", el("input", {
      type: "range", id: "smoothing", min: 0, max: 0.95, step: 0.05, value: state.smooth,
      oninput: (event) => { state.smooth = Number(event.target.value); drawCurves(); },
    })),
    ...(data.groups.some((group) => group.counted > 1) ? [check("band", "± deviation", state.band, set("band"))] : []),
    ...(data.curves.some((curve) => Object.values(curve.series).some((one) => one.runs)) ? [check("seeds", "each seed", state.seeds, set("seeds"))] : []),
  );
  if ($("charts").childElementCount !== data.series.length)
    $("charts").replaceChildren(...data.series.map(([, title], i) =>
      figure(`chart-${i}`, title, `Curves of ${title}; the table below has the figures`, null, { class: i ? "card" : "card first" })));
  drawCurves();
}

function renderLegend() {
  const rows = data.groups.map((group, index) => el("div", { class: shows(group) ? "row" : "row off" },
    el("label", {},
      el("input", { type: "checkbox", id: `group-${index}`, checked: shows(group), onchange: () => { toggle(group); } }),
      swatch(index), el("span", {}, group.label), el("output", {}, score(group.last[0]))),
    el("button", { type: "button", id: `only-${index}`, class: "only", "aria-label": `Only ${group.label}`, onclick: () => showOnly([group]) }, "only")));
  const best = data.groups.filter((group) => isNumber(group.last[0])).sort(betterFirst).slice(0, 5);
  $("legend").replaceChildren(
    el("div", { class: "actions" },
      el("button", { type: "button", id: "show-all", onclick: () => showOnly(data.groups) }, "all"),
      el("button", { type: "button", id: "show-none", onclick: () => showOnly([]) }, "none"),
      ...(data.groups.length > 5 ? [el("button", { type: "button", id: "show-best", onclick: () => showOnly(best) }, "best 5")] : [])),
    ...rows);
}
