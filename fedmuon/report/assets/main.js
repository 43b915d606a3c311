// The state of the page, and what happens when it changes.

let data = JSON.parse($("data").textContent);

const state = {
  x: "round", logx: false, logy: false, smooth: 0, band: true, seeds: false, hidden: new Set(),
  target: data.target ?? "", reference: "", sort: { key: "last", direction: data.metric.higher ? -1 : 1 },
  measure: "last", mapX: null, mapY: null, moment: "before", fairSort: { key: "worst", direction: data.metric.higher ? -1 : 1 },
  partition: 0, runSort: { key: "group", direction: 1 }, runsOpen: false, runA: 0, runB: null, differing: true, find: "",
};

const MOST_SHOWN = 16; // curves at the start; the legend brings the others
if (data.groups.length > MOST_SHOWN)
  data.groups.toSorted((a, b) => (isNumber(b.last[0]) - isNumber(a.last[0])) || betterFirst(a, b)).slice(MOST_SHOWN).forEach((group) => state.hidden.add(group.label));

const shows = (group) => !state.hidden.has(group.label);

function toggle(group) {
  if (!state.hidden.delete(group.label)) state.hidden.add(group.label);
  change({});
}

function showOnly(groups) {
  state.hidden = new Set(data.groups.filter((group) => !groups.includes(group)).map((group) => group.label));
  change({});
}

function change(what) {
  const focused = document.activeElement?.id;
  Object.assign(state, what);
  render();
  if (focused) $(focused)?.focus({ preventScroll: true });
}

function renderTop() {
  document.title = `${data.title}: fedmuon`;
  $("title").textContent = data.title;
  $("subtitle").textContent = `${data.runs.length} ${data.runs.length === 1 ? "run" : "runs"} in ${data.groups.length} ${data.groups.length === 1 ? "group" : "groups"}: ${data.status}. Made ${data.made}${data.watch ? ", refreshed while runs go on" : ""}.`;
  const parts = [...document.querySelectorAll("main > section[aria-labelledby]")].filter((section) => !section.hidden);
  $("nav").replaceChildren(...parts.map((section) => el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
}

function renderTiles() {
  const tile = (value, name, more) => el("div", { class: "card" }, el("b", {}, value), el("span", {}, name), more ? el("span", { class: "dim" }, more) : null);
  const tiles = [];
  const ended = data.groups.filter((group) => !group.so_far);
  const best = ended.filter((group) => isNumber(group.last[0])).sort(betterFirst)[0];
  if (best) tiles.push(tile(`${meanAndDeviation(best.last, score)}${data.metric.percent ? " %" : ""}${some(best.last, best)}`, best.label, `best ${data.metric.title} in the last round`));
  const done = ended.filter((group) => { const e = group.efforts[state.target]; return e?.rounds[2] && e.rounds[2] === group.counted; });
  const fastest = sorted(done, (group) => group.efforts[state.target].rounds[0], 1)[0];
  if (fastest) {
    const effort = fastest.efforts[state.target];
    tiles.push(tile(`${number(effort.rounds[0])} rounds`, fastest.label, `fewest to ${target(Number(state.target))}${isNumber(effort.speed_up) && effort.speed_up !== 1 ? `, ${number(effort.speed_up, 2)} × as fast as ${data.baseline}` : ""}`));
    const lightest = sorted(done, (group) => group.efforts[state.target].mb[0], 1)[0];
    tiles.push(tile(`${number(lightest.efforts[state.target].mb[0])} MB`, lightest.label, `least sent to ${target(Number(state.target))}`));
  }
  const served = data.clients.filter((one) => one.moment === "before" && !data.groups[one.group].so_far);
  const fair = sorted(served, (one) => one.worst[0], data.metric.higher ? -1 : 1)[0];
  if (served.length === 1 || served.some((one) => one.worst[0] !== fair.worst[0])) tiles.push(tile(`${meanAndDeviation(fair.worst, score)}${data.metric.percent ? " %" : ""}`, data.groups[fair.group].label, "best for the worst 10 % of the clients"));
  $("tiles").replaceChildren(...tiles);
}

function renderProblems() {
  $("problems").hidden = !data.problems.length;
  const lines = data.problems.map((problem) => el("li", {}, problem)), first = lines.slice(0, 8), rest = lines.slice(8);
  $("problems-body").replaceChildren(...first, ...(rest.length ? [el("details", {}, el("summary", {}, `${rest.length} more`), rest)] : []));
}

function render() {
  for (const part of [renderTiles, renderLegend, renderCurves, renderTable, renderSettings, renderClients, renderPartition, renderRuns, renderConfiguration, renderProblems, renderTop]) part();
}

// plotly.js travels compressed in the page.
async function loadPlotly() {
  const bytes = Uint8Array.from(atob($("plotly").textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(el("script", {}, await new Response(stream).text()));
}

// What was chosen, as far as the new data have it.
function stillThere() {
  return {
    target: data.targets.includes(state.target) ? state.target : data.target ?? "",
    reference: data.groups.some((group) => group.label === state.reference) ? state.reference : "",
  };
}

async function watch() {
  let made = data.version, failures = 0;
  while (failures < 3) {
    await new Promise((wake) => setTimeout(wake, 2000));
    try {
      const answer = await fetch(`data.json?version=${made}`);
      failures = 0;
      if (answer.status !== 200) continue;
      data = await answer.json();
      made = data.version;
      change(stillThere());
    } catch { failures += 1; }
  }
  $("subtitle").append(" The command that served this page has ended.");
}

$("theme").addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.target.value;
  if (!event.target.value) delete document.documentElement.dataset.theme;
  render();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);

loadPlotly().then(() => {
  render();
  document.documentElement.dataset.ready = "true";
  if (data.watch) watch();
}, (error) => {
  $("subtitle").textContent = `The figures cannot be drawn (${error}): this page needs a browser of 2023 or later.`;
});
