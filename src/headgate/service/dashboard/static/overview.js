// The overview: keeps the rates, the sparklines and the order of the rules current from the live stream, and the
// table of processes; fetches the rows of rules that are not in the table and refuse more than those that are.
"use strict";

const SECONDS = 60;
const SORT_MS = 4000;
const NODES_MS = 5000;
const FETCH_MS = 2000; // between two fetches of rows
const MAX_ROWS = 150; // of a table that does not show all rules
// Columns of a row of counts.
const [AT, OFFERED, DELAYED, REFUSED, SHADOW, CANDIDATE] = [0, 1, 2, 3, 4, 5];

const { window: WINDOW, lag: LAG } = headgate.data;
let marks = headgate.data.marks ?? [];
const rings = new Map(); // by rule: Map of second to row
const table = document.querySelector("#rules tbody");
const tableRows = new Map([...table.rows].map((row) => [row.dataset.rule, row]));
const filter = document.getElementById("filter");
const isAll = new URLSearchParams(location.search).has("all");
let version = headgate.data.version; // of the rulebook whose rules are in the table
let followed = version; // of the rulebook that the service follows
let isPartial = headgate.data.partial;
let isFetching = false;
let fetchedAt = -Infinity;
let now = 0;
let offsetMs = null; // between the browser's clock and the server's

function merge(rows) {
  for (const [rule, list] of Object.entries(rows ?? {})) {
    let ring = rings.get(rule);
    if (!ring) rings.set(rule, (ring = new Map()));
    for (const row of list) {
      ring.set(row[AT], row);
      now = Math.max(now, row[AT]);
    }
    for (const second of ring.keys()) if (second <= now - SECONDS) ring.delete(second);
  }
}

function rates(rule) {
  const sums = [0, 0, 0, 0, 0, 0];
  for (const [second, row] of rings.get(rule) ?? []) {
    if (second > now - LAG - WINDOW && second <= now - LAG) for (let c = 1; c < 6; c++) sums[c] += row[c] / WINDOW;
  }
  return sums;
}

function share(part, whole) {
  if (!whole || !part) return "";
  const percent = (100 * part) / whole;
  return percent >= 9.95 ? `${percent.toFixed(0)} %` : `${percent.toFixed(1)} %`;
}

function path(points, height) {
  return points.map((value, x) => `${x ? "L" : "M"}${x} ${(20 - value * height).toFixed(2)}`).join("");
}

// A line where there is something, and nothing where it is zero.
function line(points, height) {
  let drawn = "";
  points.forEach((value, x) => {
    if (value || points[x - 1] || points[x + 1]) {
      const begins = x === 0 || !(points[x - 1] || points[x - 2] || value);
      drawn += `${begins || !drawn ? "M" : "L"}${x} ${(20 - value * height).toFixed(2)}`;
    }
  });
  return drawn;
}

// Vertical lines where the rulebook changed.
function markLines(last) {
  const at = marks.map((mark) => Math.floor(mark.at) - (now - SECONDS));
  return at.filter((x) => x > 0 && x <= last).map((x) => `M${x} 0V20`).join("");
}

// Draws what passed, waited and was refused as areas above each other, and trials and changes as lines.
function spark(svg, rule) {
  const ring = rings.get(rule);
  const rows = [];
  for (let second = now - SECONDS; second <= now - 1 - LAG; second++) rows.push(ring?.get(second) ?? [second, 0, 0, 0, 0, 0]);
  const highest = Math.max(1, ...rows.map((row) => row[OFFERED]));
  const height = 19 / highest;
  const area = (values) => `${path(values, height)}L${rows.length - 1} 20L0 20Z`;
  const shapes = [
    ["refused", area(rows.map((row) => row[OFFERED]))],
    ["passed", area(rows.map((row) => row[OFFERED] - row[REFUSED]))],
    ["delayed", area(rows.map((row) => row[DELAYED]))],
    ["shadow", line(rows.map((row) => row[SHADOW]), height)],
    ["candidate", line(rows.map((row) => row[CANDIDATE]), height)],
    ["mark", markLines(rows.length - 1)],
  ];
  while (svg.childElementCount < shapes.length) {
    svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  }
  shapes.forEach(([name, d], index) => {
    const shape = svg.children[index];
    shape.setAttribute("class", name);
    shape.setAttribute("d", d);
  });
}

function order([, offered, , refused, shadow, candidate]) {
  return [-refused, -shadow - candidate, -offered];
}

function put(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function showRule(rule, row) {
  const sums = rates(rule);
  const [, offered, delayed, refused, shadow, candidate] = sums;
  const numbers = { offered, passed: offered - refused, delayed, refused, shadow, candidate };
  for (const [name, number] of Object.entries(numbers)) {
    const cell = row.querySelector(`td.${name}`);
    put(cell, shortRate(number));
    cell.classList.toggle("zero", !number);
  }
  put(row.querySelector("td.share"), share(refused, offered));
  row.querySelector("td.refused").classList.toggle("alarm", refused > 0);
  row.order = order(sums);
  spark(row.querySelector("svg"), rule);
}

function showTotals() {
  const sums = [0, 0, 0, 0, 0, 0];
  for (const rule of rings.keys()) rates(rule).forEach((value, column) => (sums[column] += value));
  const set = (name, text) => put(document.getElementById(`sum-${name}`), text);
  set("offered", shortRate(sums[OFFERED]));
  set("passed", shortRate(sums[OFFERED] - sums[REFUSED]));
  set("delayed", shortRate(sums[DELAYED]));
  set("refused", shortRate(sums[REFUSED]));
  set("share", share(sums[REFUSED], sums[OFFERED]));
  set("trial", shortRate(sums[SHADOW] + sums[CANDIDATE]));
}

const chart = timeChart(
  document.getElementById("total"),
  [
    { label: headgate.text("Passed"), name: "passed", fill: true },
    { label: headgate.text("Delayed"), name: "delayed" },
    { label: headgate.text("Refused"), name: "refused", fill: true },
    { label: headgate.text("Shadow"), name: "shadow", dash: [5, 4] },
    { label: headgate.text("Candidate"), name: "candidate", dash: [2, 3] },
  ],
  170,
);

function showChart() {
  const times = [];
  const columns = [[], [], [], [], []];
  for (let second = now - SECONDS + 1; second <= now - 1 - LAG; second++) {
    const sums = [0, 0, 0, 0, 0, 0];
    for (const ring of rings.values()) ring.get(second)?.forEach((value, column) => (sums[column] += value));
    times.push(second);
    [sums[OFFERED] - sums[REFUSED], sums[DELAYED], sums[REFUSED], sums[SHADOW], sums[CANDIDATE]].forEach((value, c) =>
      columns[c].push(value),
    );
  }
  chart.set([times, ...columns], marks);
}

function compareOrder(a, b) {
  for (let index = 0; index < 3; index++) if (a[index] !== b[index]) return a[index] - b[index];
  return 0;
}

function compare(a, b) {
  return compareOrder(a.order, b.order) || (a.dataset.rule < b.dataset.rule ? -1 : 1);
}

// Sorts the worst first; not while somebody reads or walks through the table, under whose eyes rows would move.
function sort() {
  if (table.matches(":hover") || table.contains(document.activeElement)) return;
  const sorted = [...tableRows.values()].sort(compare);
  if (isPartial) for (const row of sorted.splice(MAX_ROWS)) remove(row);
  if (sorted.some((row, index) => table.rows[index] !== row)) table.append(...sorted);
}

function remove(row) {
  tableRows.delete(row.dataset.rule);
  row.remove();
}

// Fetches rows: those whose rules refuse most, or have a name that is looked for. New rows come to the end, until the
// next sorting; the rows of rules that are gone leave when the rulebook has changed.
async function fetchRows(rulebookChanged) {
  if (isFetching) return;
  isFetching = true;
  fetchedAt = performance.now();
  const find = rulebookChanged ? "" : filter.value.trim();
  try {
    const query = new URLSearchParams({ ...(isAll ? { all: 1 } : {}), ...(find ? { find } : {}) });
    const fetched = await headgate.get(`/overview/rules?${query}`);
    const template = document.createElement("template");
    template.innerHTML = fetched.rows;
    const found = new Set();
    for (const row of [...template.content.children]) {
      found.add(row.dataset.rule);
      const shown = tableRows.get(row.dataset.rule);
      if (!shown) {
        row.order = [0, 0, 0];
        tableRows.set(row.dataset.rule, row);
        table.append(row);
      } else if (shown.cells[0].innerHTML !== row.cells[0].innerHTML) {
        shown.cells[0].replaceChildren(...row.cells[0].childNodes);
      }
    }
    if (!find) isPartial = fetched.partial;
    if (rulebookChanged) for (const row of [...tableRows.values()]) if (!found.has(row.dataset.rule)) remove(row);
    put(document.getElementById("rules-title"), fetched.title);
    version = fetched.version;
    applyFilter();
    if (!find) sort();
  } catch {
    // The next event tries again.
  } finally {
    isFetching = false;
  }
  if (rulebookChanged && isPartial && filter.value.trim()) fetchRows(false);
}

// Returns whether a rule that is not in the table belongs there: one that was not there before, or that refuses
// more than the last row.
function isRuleMissing() {
  let last = null;
  for (const [rule] of rings) {
    if (tableRows.has(rule)) continue;
    const sums = rates(rule);
    if (!sums[OFFERED]) continue;
    if (!isPartial) return true;
    last ??= [...tableRows.values()].sort(compare).at(-1)?.order ?? [0, 0, 0];
    if (sums[REFUSED] + sums[SHADOW] + sums[CANDIDATE] && compareOrder(order(sums), last) < 0) return true;
  }
  return false;
}

function showAll() {
  for (const [rule, row] of tableRows) if (!row.hidden) showRule(rule, row);
  showTotals();
  showChart();
}

function applyFilter() {
  const wanted = filter.value.trim().toLowerCase();
  for (const [rule, row] of tableRows) row.hidden = !rule.toLowerCase().includes(wanted);
  showAll();
}

headgate.onEvent((event) => {
  if (event.now !== undefined) {
    now = Math.max(now, event.now);
    offsetMs = Date.now() - event.now * 1000;
  }
  merge(event.rows);
  if (event.state) {
    const problem = document.getElementById("problem");
    problem.hidden = !event.state.problem;
    put(problem, event.state.problem ?? "");
    const known = marks.some((mark) => mark.version === event.state.version);
    if (event.state.version && !known && marks.length) marks = [...marks, { at: now, version: event.state.version }];
    followed = event.state.version;
  }
  if (document.hidden) return;
  showAll();
  if (performance.now() - fetchedAt < FETCH_MS) return;
  const rulebookChanged = followed !== version;
  if (rulebookChanged || isRuleMissing()) fetchRows(rulebookChanged);
});

async function refreshNodes() {
  if (document.hidden) return;
  try {
    const { rows } = await headgate.get("/overview/nodes");
    const body = document.querySelector("#nodes tbody");
    if (body.innerHTML !== rows) body.innerHTML = rows;
  } catch {
    // The sign of the live stream says that there is no connection; the next try comes soon.
  }
}

let typed = 0;
filter.addEventListener("input", () => {
  applyFilter();
  clearTimeout(typed);
  if (isPartial) typed = setTimeout(fetchRows, 250, false);
});
setInterval(refreshNodes, NODES_MS);
merge(headgate.data.rows);
for (const row of tableRows.values()) row.order = [0, 0, 0];
showAll();
setInterval(sort, SORT_MS);
// The minute moves on also while nothing is counted.
setInterval(() => {
  if (offsetMs === null || document.hidden) return;
  const second = Math.floor((Date.now() - offsetMs) / 1000);
  if (second > now) {
    now = second;
    showAll();
  }
}, 1000);
