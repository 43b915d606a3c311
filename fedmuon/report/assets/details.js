// Clients and their fairness, partitions, runs, and configurations side by side.

function renderClients() {
  $("clients").hidden = false;
  const moments = [["before", "global model"], ["after", "after local training"]].filter(([key]) => data.clients.some((one) => one.moment === key));
  if (!moments.length) {
    $("clients-controls").replaceChildren();
    $("clients-body").replaceChildren(el("p", { class: "card dim" }, "These runs have no figures of single clients: data.client_validation=0.2 evaluation.clients_every=5 measures what each client holds out."));
    return;
  }
  if (!moments.some(([key]) => key === state.moment)) state.moment = moments[0][0];
  const shown = data.clients.filter((one) => one.moment === state.moment);
  const rows = shown.map((one) => ({ ...one, label: data.groups[one.group].label }));
  const cell = (key) => (one) => meanAndDeviation(one[key], score);
  const better = data.metric.higher ? -1 : 1;
  const found = [
    { key: "mean", title: `mean of clients${percent()}`, sort: (one) => one.mean[0], first: better, cell: cell("mean") },
    { key: "worst", title: `worst 10 %${percent()}`, sort: (one) => one.worst[0], first: better, cell: cell("worst") },
    { key: "deviation", title: `deviation over clients${percent()}`, sort: (one) => one.deviation[0], first: 1, cell: cell("deviation") },
    { key: "clients", title: "clients", sort: (one) => one.clients, first: -1, cell: (one) => number(one.clients) },
  ];
  const head = { id: "fairness", title: "group", cell: (one) => el("span", { class: "group" }, swatch(one.group), el("span", {}, one.label)) };
  $("clients-controls").replaceChildren(select("moment", `${data.metric.name} of`, moments, state.moment, (value) => change({ moment: value })));
  $("clients-body").replaceChildren(el("div", { class: "two" },
    figure("client-chart", `${data.metric.name} of the clients, worst first`, `${data.metric.name} over the clients, worst first; the table has the figures`, 340),
    el("div", { class: "card wide" }, sortableTable(rows, found, state.fairSort, head, () => change({})))));
  const traces = shown.filter((one) => shows(data.groups[one.group])).map((one) => {
    const { colour, dash } = look(one.group);
    const y = data.metric.higher ? one.curve : one.curve.toReversed();
    return { x: y.map((_, i) => i / (y.length - 1)), y, name: escaped(data.groups[one.group].label), mode: "lines", line: { color: colour, dash, width: 2.2 } };
  });
  draw("client-chart", traces, layout({
    hovermode: traces.length <= 12 ? "x unified" : "closest",
    xaxis: { tickformat: ".0%", range: [0, 1], title: { text: "share of the clients", standoff: 8, font: { size: 12, color: css("--dim") } } },
    yaxis: { tickformat: data.metric.percent ? ".0%" : undefined },
    shapes: [{ type: "rect", xref: "x", yref: "paper", x0: 0, x1: 0.1, y0: 0, y1: 1, fillcolor: faint("#888888", 0.14), line: { width: 0 } }],
  }));
}

function renderPartition() {
  $("partition").hidden = !data.partitions.length;
  if (!data.partitions.length) return;
  const at = Math.min(state.partition, data.partitions.length - 1), one = data.partitions[at];
  $("partition-controls").replaceChildren(...(data.partitions.length > 1
    ? [select("which-partition", "partition", data.partitions.map((p, i) => [i, p.label]), at, (value) => change({ partition: Number(value) }))]
    : [el("span", {}, one.label)]),
  el("span", { class: "dim" }, `${number(one.clients, 9)} clients of ${number(one.smallest, 9)} to ${number(one.largest, 9)} samples, ${number(one.samples, 9)} in all; ${one.runs.length} runs`));
  const lines = one.sizes.length, per = one.clients / lines;
  const told = `${per > 1.5 ? `about ${Math.round(per)} clients a line, ordered by their most frequent class` : "a line a client"}${one.shares ? ": share of each class in its samples, and their number" : ": its samples"}`;
  $("partition-body").replaceChildren(figure("partition-chart", told, told, Math.max(260, Math.min(560, 90 + 9 * lines))), ...one.notes.map((note) => el("p", { class: "dim" }, note)));
  const y = one.sizes.map((_, i) => i), traces = [];
  if (one.shares) traces.push({
    type: "heatmap", z: one.shares, y, colorscale: dark() ? [[0, css("--card")], [1, "#6bb8f0"]] : [[0, "#ffffff"], [1, "#00558a"]],
    showscale: false, text: one.shares.map(() => one.classes.map(escaped)), hovertemplate: "line %{y}<br>%{text}: %{z} %<extra></extra>",
  });
  traces.push({
    type: "bar", orientation: "h", x: one.sizes, y, xaxis: one.shares ? "x2" : "x", marker: { color: css("--dim"), opacity: 0.6 }, hovertemplate: "line %{y}: %{x} samples<extra></extra>",
  });
  const axis = { gridcolor: css("--line"), zeroline: false, tickfont: { color: css("--dim") } };
  draw("partition-chart", traces, layout({
    bargap: 0, margin: { l: 46, r: 12, t: 6, b: 60 },
    xaxis: one.shares ? { domain: [0, 0.74], showgrid: false, automargin: true, ...classTicks(one.classes) } : { title: { text: "samples" } },
    ...(one.shares && { xaxis2: { ...axis, domain: [0.77, 1], title: { text: "samples" }, nticks: 4 } }),
    yaxis: { autorange: "reversed", showgrid: false, title: { text: per > 1.5 ? "" : "client" } },
  }));
}

// The names of the classes where they have room, else some of their numbers.
function classTicks(classes) {
  return classes.length > (innerWidth < 700 ? 12 : 30) ? {} : { tickvals: classes.map((_, i) => i), ticktext: classes.map(brief) };
}

function renderRuns() {
  const found = [
    { key: "group", title: "group", left: true, sort: (run) => data.groups[run.group].label, first: 1, cell: (run) => el("span", { class: "group" }, swatch(run.group), el("span", {}, data.groups[run.group].label)) },
    { key: "seed", title: "seed", sort: (run) => run.seed, first: 1, cell: (run) => String(run.seed ?? "–") },
    { key: "status", title: "status", sort: (run) => run.status, first: 1, cell: (run) => el("span", { class: `status ${/failed|stopped|damaged/.test(run.status) ? "failed" : ""}` }, run.status) },
    { key: "rounds", title: "rounds", sort: (run) => run.rounds, first: -1, cell: (run) => (run.planned ? `${run.rounds} of ${run.planned}` : String(run.rounds)) },
    { key: "last", title: `last round${percent()}`, sort: (run) => run.last, first: data.metric.higher ? -1 : 1, cell: (run) => score(run.last) },
    { key: "best", title: `best by validation${percent()}`, sort: (run) => run.best, first: data.metric.higher ? -1 : 1,
      cell: (run) => (run.best_round ? [score(run.best), el("small", {}, ` (round ${run.best_round})`)] : score(run.best)) },
    { key: "path", title: "directory", left: true, class: "path", sort: (run) => run.path, first: 1,
      cell: (run) => [run.path, run.cause ? el("div", { class: "failed" }, run.cause) : null].filter((part) => part !== null) },
  ];
  const table = el("div", { class: "card wide" }, sortableTable(data.runs, found, state.runSort, { id: "all-runs" }, () => change({})));
  $("runs-body").replaceChildren(data.runs.length <= 24 ? table
    : el("details", { open: state.runsOpen, ontoggle: (event) => { state.runsOpen = event.target.open; } }, el("summary", {}, `all ${data.runs.length} runs`), table));
}

function renderConfiguration() {
  const names = data.runs.map((run, i) => [i, `${data.groups[run.group].label}, seed ${run.seed} (${run.path.split("/").pop()})`]);
  state.runA = Math.min(state.runA, names.length - 1);
  const other = data.runs.findIndex((run) => run.group !== data.runs[state.runA].group);
  state.runB = Math.min(state.runB ?? (other < 0 ? state.runA + 1 : other), names.length - 1);
  $("configuration-controls").replaceChildren(
    select("run-a", "run", names, state.runA, (value) => change({ runA: Number(value) })),
    ...(names.length > 1 ? [select("run-b", "beside", names, state.runB, (value) => change({ runB: Number(value) })),
      check("differing", "only what differs", state.differing, (value) => change({ differing: value }))] : []),
    el("label", {}, "find", el("input", { type: "search", id: "find", value: state.find, oninput: (event) => { state.find = event.target.value; fillConfiguration(); } })));
  fillConfiguration();
}

function fillConfiguration() {
  const [a, b] = [state.runA, state.runB].map((i) => ({ ...data.common, ...data.own[i] }));
  const two = state.runA !== state.runB, only = two && state.differing;
  const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].sort()
    .filter((key) => (!only || a[key] !== b[key]) && (key + (a[key] ?? "") + (b[key] ?? "")).toLowerCase().includes(state.find.toLowerCase()));
  const rows = keys.map((key) => el("tr", { class: two && a[key] !== b[key] ? "differs" : null },
    el("th", { scope: "row", class: "left" }, two && a[key] !== b[key] ? `≠ ${key}` : key),
    el("td", { class: "left" }, a[key] ?? absent), two ? el("td", { class: "left" }, b[key] ?? absent) : null));
  const title = (i) => `${data.groups[data.runs[i].group].label}, seed ${data.runs[i].seed}`;
  $("configuration-body").replaceChildren(el("table", { id: "configuration-table" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "left" }, "key"), el("th", { scope: "col", class: "left" }, title(state.runA)), two ? el("th", { scope: "col", class: "left" }, title(state.runB)) : null)),
    el("tbody", {}, rows.length ? rows : el("tr", {}, el("td", { class: "left" }, "nothing")))));
}
