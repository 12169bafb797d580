// A rule: its charts over a minute, an hour or a day, and its keys, kept current.
"use strict";

const { rule } = headgate.data;
let span = headgate.data.span;
const REFRESH_MS = { minute: 1000, hour: 10000, day: 60000 };
const KEYS_MS = 3000;

const verdicts = timeChart(
  document.getElementById("verdicts"),
  [
    { label: headgate.text("Passed"), name: "passed", fill: true },
    { label: headgate.text("Delayed"), name: "delayed" },
    { label: headgate.text("Refused"), name: "refused", fill: true },
  ],
  220,
);
const trialElement = document.getElementById("trial"); // only of rules with a shadow or a candidate
const trial = trialElement && timeChart(
  trialElement,
  [
    { label: headgate.text("Refused"), name: "refused" },
    { label: headgate.text("Shadow"), name: "shadow", dash: [5, 4] },
    { label: headgate.text("Candidate"), name: "candidate", dash: [2, 3] },
  ],
  130,
);

function show(series) {
  if (series.problem || !series.t) return;
  verdicts.set([series.t, series.passed, series.delayed, series.refused], series.marks);
  trial?.set([series.t, series.refused, series.shadow, series.candidate], series.marks);
}

let readAt = 0;
async function refresh() {
  if (document.hidden || Date.now() - readAt < REFRESH_MS[span]) return;
  readAt = Date.now();
  try {
    const query = new URLSearchParams({ name: rule, span });
    show(await headgate.get(`/rule/series?${query}`));
  } catch {
    // The sign of the live stream says that there is no connection; the next try comes soon.
  }
}

async function refreshKeys() {
  const keys = document.getElementById("keys");
  if (document.hidden || keys.contains(document.activeElement)) return;
  try {
    const { html } = await headgate.get(`/rule/keys?${new URLSearchParams({ name: rule })}`);
    keys.innerHTML = html;
  } catch {
    // as above
  }
}

// Stages that run move on by themselves.
async function refreshStages() {
  const card = document.getElementById("stages");
  if (document.hidden || !card?.querySelector(".stages") || card.contains(document.activeElement)) return;
  try {
    const { html } = await headgate.get(`/rule/stages?${new URLSearchParams({ name: rule })}`);
    if (html && card.outerHTML !== html) card.outerHTML = html;
  } catch {
    // as above
  }
}

for (const button of document.querySelectorAll("[data-span]")) {
  button.addEventListener("click", () => {
    span = button.dataset.span;
    for (const each of document.querySelectorAll("[data-span]")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
    history.replaceState(null, "", `?${new URLSearchParams({ name: rule, span })}`);
    readAt = 0;
    refresh();
  });
}

show(headgate.data.series);
setInterval(refresh, 500);
setInterval(refreshKeys, KEYS_MS);
setInterval(refreshStages, KEYS_MS);
