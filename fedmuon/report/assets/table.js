// The table of the groups, sortable, with differences that the seeds make significant.

function columns() {
  const effort = (group) => group.efforts[state.target];
  const sign = data.metric.higher ? -1 : 1;
  const to = ` to ${target(Number(state.target))}`;
  const spreadCell = (spread, group, form) => (spread && isNumber(spread[0]) ? [meanAndDeviation(spread, form), el("small", {}, some(spread, group))] : "–");
  const reached = (key) => (group) => spreadCell(effort(group)?.[key], group, number);
  const found = [
    { key: "last", title: `last round${percent()}`, sort: (g) => g.last[0], first: sign, cell: lastCell },
    { key: "best", title: `best by validation${percent()}`, sort: (g) => g.best[0], first: sign, cell: (g) => spreadCell(g.best, g, score) },
  ];
  if (data.targets.length) found.push(
    { key: "rounds", title: `rounds${to}`, sort: (g) => effort(g)?.rounds[0], first: 1, cell: reached("rounds") },
    { key: "mb", title: `MB${to}`, sort: (g) => effort(g)?.mb[0], first: 1, cell: reached("mb") },
    { key: "s", title: `seconds${to}`, sort: (g) => effort(g)?.s[0], first: 1, cell: reached("s") },
    { key: "speed", title: `speed-up over ${data.baseline}`, sort: (g) => effort(g)?.speed_up, first: -1,
      cell: (g) => (isNumber(effort(g)?.speed_up) ? `${number(effort(g).speed_up, 2)} ×` : "–") });
  found.push(
    { key: "up", title: "MB a round, up", sort: (g) => g.payload[0], first: 1, cell: (g) => number(g.payload[0]) },
    { key: "down", title: "MB a round, down", sort: (g) => g.payload[1], first: 1, cell: (g) => number(g.payload[1]) },
    { key: "parameters", title: "parameters", sort: (g) => g.parameters, first: 1, cell: (g) => (isNumber(g.parameters) ? g.parameters.toLocaleString("en") : "–") },
    { key: "status", title: "runs", sort: (g) => g.status, first: 1, cell: (g) => el("span", { class: /failed|stopped|damaged/.test(g.status) ? "failed" : "" }, g.so_far ? `${g.status}, so far` : g.status) });
  return found;
}

// [difference, p, adjusted p, mark] of a group against the chosen reference.
function testOf(group) {
  if (state.reference === "") return group.test && [...group.test, group.mark];
  const index = data.groups.findIndex((one) => one.label === state.reference);
  return data.tests?.[index]?.[data.groups.indexOf(group)];
}

function lastCell(group) {
  const best = data.groups.filter((one) => isNumber(one.last[0]) && !one.so_far).sort(betterFirst)[0];
  const test = testOf(group), mark = test?.[3];
  const text = meanAndDeviation(group.last, score);
  const cell = [el("span", { class: group === best ? "top-value" : "" }, text), el("small", {}, some(group.last, group))];
  if (mark) {
    const told = `${mark} than the reference by ${score(Math.abs(test[0]))}; paired t-test over seeds, p = ${number(test[1], 2)}, adjusted ${number(test[2], 2)}`;
    cell.push(el("span", { class: mark, title: told, role: "img", "aria-label": told }, mark === "better" ? " ▲" : " ▼"));
  }
  return cell;
}

const betterFirst = (a, b) => (data.metric.higher ? b.last[0] - a.last[0] : a.last[0] - b.last[0]);

function sorted(items, value, direction) {
  const empty = (v) => v === null || v === undefined || (typeof v === "number" && !isFinite(v));
  return items.toSorted((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (empty(x) || empty(y)) return empty(x) - empty(y); // what has no figure is last either way
    return direction * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
}

// One sortable table: `kept` remembers {key, direction} between renderings.
function sortableTable(items, found, kept, head, rerender) {
  const by = found.find((column) => column.key === kept.key);
  const shown = by ? sorted(items, by.sort, kept.direction) : items;
  const header = found.map((column) => {
    const active = column === by;
    const flip = () => {
      Object.assign(kept, { key: column.key, direction: active ? -kept.direction : column.first });
      rerender();
    };
    return el("th", { scope: "col", class: column.left ? "left" : null, "aria-sort": active ? (kept.direction > 0 ? "ascending" : "descending") : null },
      el("button", { type: "button", id: `sort-${head.id}-${column.key}`, onclick: flip }, column.title));
  });
  const body = shown.map((item) => el("tr", {}, head.cell ? el("th", { scope: "row", class: "left" }, head.cell(item)) : null,
    found.map((column) => el("td", { class: column.left ? `left ${column.class || ""}` : null }, [column.cell(item)].flat()))));
  return el("table", { id: head.id },
    el("thead", {}, el("tr", {}, head.cell ? el("th", { scope: "col", class: "left" }, head.title) : null, header)), el("tbody", {}, body));
}

function renderTable() {
  const references = [["", `${data.baseline}, tried alike`], ...(data.tests ? data.groups.map((group) => [group.label, group.label]) : [])];
  $("table-controls").replaceChildren(
    ...(data.targets.length ? [select("target", "target", data.targets.map((t) => [t, target(Number(t))]), state.target, (value) => change({ target: value }))] : []),
    ...(data.groups.length > 1 ? [select("reference", "marks against", references, state.reference, (value) => change({ reference: value }))] : []));
  const head = { id: "results", title: "group", cell: (group) => el("span", { class: "group" }, swatch(data.groups.indexOf(group)), el("span", {}, group.label)) };
  $("table-body").replaceChildren(sortableTable(data.groups, columns(), state.sort, head, () => change({})));
  const notes = [`Mean ± sample deviation over seeds. “Last round” is the ${data.metric.title} at the end; “best by validation” that in the round with the best validation ${data.metric.name}. “(2 of 3)”: the mean is over two of the group's three runs; the others failed, have not ended, or have no such figure.`];
  if (data.groups.some((group) => testOf(group)))
    notes.push("▲ ▼: better, worse than the reference at 5 % in a paired t-test over common seeds (three or more), adjusted after Holm.");
  if (data.groups.some((group) => group.so_far)) notes.push("“So far”: no run of the group has done all its rounds; its figures are of those done.");
  if (data.machines.length > 1) notes.push(`Seconds are of different machines: ${data.machines.join("; ")}.`);
  $("table-notes").replaceChildren(notes.join(" "));
}
