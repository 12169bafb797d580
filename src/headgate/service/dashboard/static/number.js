// Find a number: uploads a log, shows how far its analysis is, and lets one choose a limit of its frontier.
"use strict";

const form = document.getElementById("upload");
const working = document.getElementById("working");
const progress = document.getElementById("progress");
const problem = document.getElementById("upload-problem");
const cancel = document.getElementById("cancel");
let running = null;

function showProblem(text) {
  const paragraph = document.createElement("p");
  paragraph.className = "problem";
  paragraph.textContent = text;
  problem.replaceChildren(...(text ? [paragraph] : []));
}

function showPhase(text, share) {
  document.getElementById("phase").textContent = text;
  if (share == null) progress.removeAttribute("value");
  else progress.value = share;
}

function show(isRunning) {
  working.hidden = cancel.hidden = !isRunning;
  document.getElementById("start").disabled = isRunning;
}

function options() {
  const fields = Object.fromEntries([...new FormData(form)].filter(([name, value]) => name !== "log" && value));
  delete fields.form;
  return fields;
}

// Sends the file, and passes on each line of the response as it comes.
function send(file, onEvent) {
  return new Promise((resolve) => {
    const request = (running = new XMLHttpRequest());
    request.open("POST", `${ROOT}/number/upload?${new URLSearchParams({ ...options(), name: file.name })}`);
    request.setRequestHeader("x-requested-with", "page");
    request.setRequestHeader("x-headgate-form", form.elements.form.value);
    request.setRequestHeader("content-type", "application/octet-stream");
    let read = 0;
    let ended = false;
    const take = () => {
      for (;;) {
        const end = request.responseText.indexOf("\n", read);
        if (end < 0) return;
        const event = JSON.parse(request.responseText.slice(read, end));
        read = end + 1;
        ended ||= event.html !== undefined || event.error !== undefined;
        onEvent(event);
      }
    };
    request.upload.onprogress = (event) => showPhase(headgate.text("Uploading"), event.loaded / file.size);
    request.onprogress = () => request.status === 200 && take();
    request.onloadend = () => {
      if (request.status === 200) take();
      else if (request.status) onEvent({ error: errorOf(request) });
      if (!ended && !request.status) onEvent({ error: headgate.text(request.cancelled ? "cancelled" : "no connection") });
      else if (!ended && request.status === 200) onEvent({ error: headgate.text("no connection") });
      resolve();
    };
    request.send(file);
  });
}

function errorOf(request) {
  try {
    return JSON.parse(request.responseText).error;
  } catch {
    return String(request.status);
  }
}

async function upload() {
  const [file] = form.elements.log.files;
  const result = document.getElementById("result");
  result.replaceChildren();
  showProblem("");
  if (file.size > headgate.data.maxBytes) return showProblem(headgate.text("A log may have at most 100 MB."));
  show(true);
  showPhase(headgate.text("Uploading"), 0);
  try {
    const checked = await headgate.post("/number/check", { ...options(), form: form.elements.form.value });
    if (checked.error) return showProblem(checked.error);
    await send(file, (event) => {
      if (event.error !== undefined) showProblem(event.error);
      else if (event.html !== undefined) showResult(result, event);
      else showPhase(event.phase, event.share);
    });
  } catch {
    showProblem(headgate.text("no connection"));
  } finally {
    running = null;
    show(false);
  }
}

const percent = (part, whole) => {
  const share = whole ? (100 * part) / whole : 0;
  if (share === 0 || share === 100) return `${share} %`;
  return share >= 9.95 ? `${share.toFixed(0)} %` : share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 1 ? 2 : 1)} %`;
};

function fill(text, values) {
  return headgate.text(text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function showResult(result, event) {
  result.innerHTML = event.html;
  const { grid } = event;
  const suggested = document.getElementById("chosen").textContent;
  const [rateInput, burstInput] = ["rate", "burst"].map((id) => document.getElementById(id));
  const element = document.getElementById("frontier");
  element.dataset.label = document.querySelector("label[for=rate]").textContent;
  rateInput.max = grid.rows.length - 1;
  let chart = null;

  function shown({ row, point }) {
    const counts = grid.rows[row].points[point];
    const text = `${grid.rows[row].rate} burst ${counts[BURST]}`;
    rateInput.value = row;
    rateInput.setAttribute("aria-valuetext", grid.rows[row].rate);
    burstInput.max = grid.rows[row].points.length - 1;
    burstInput.value = point;
    burstInput.setAttribute("aria-valuetext", String(counts[BURST]));
    for (const id of ["chosen", "save-text"]) document.getElementById(id).textContent = text;
    document.getElementById("save-limit").value = text;
    showRefusals(grid, counts);
  }
  chart = frontierChart(element, grid, shown);
  const back = () => {
    const row = Math.max(0, grid.rows.findIndex((each) => suggested.startsWith(`${each.rate} burst `)));
    const burst = Number(suggested.split(" ").at(-1));
    chart.choose(row, nearest(grid.rows[row].points.map((point) => point[BURST]), burst));
  };
  rateInput.addEventListener("input", () => chart.follow(Number(rateInput.value)));
  burstInput.addEventListener("input", () => chart.choose(chart.position().row, Number(burstInput.value)));
  document.getElementById("reset-choice").addEventListener("click", back);
  back();
  result.querySelector("h2").scrollIntoView({ block: "nearest" });
}

function showRefusals(grid, counts) {
  const [keys, calls, heavyKeys, heavyCalls] = grid.totals;
  const lines = [
    fill(
      counts[KEYS]
        ? "Refuses {keys} of {allKeys} ordinary keys ({keyShare}), {calls} of their {allCalls} calls ({callShare})."
        : "Refuses none of {allKeys} ordinary keys.",
      {
        keys: counts[KEYS].toLocaleString(),
        allKeys: keys.toLocaleString(),
        keyShare: percent(counts[KEYS], keys),
        calls: counts[CALLS].toLocaleString(),
        allCalls: calls.toLocaleString(),
        callShare: percent(counts[CALLS], calls),
      },
    ),
  ];
  if (heavyKeys) {
    lines.push(
      fill("Of the heavy keys it refuses {keys} of {allKeys}, and {callShare} of their calls.", {
        keys: counts[HEAVY_KEYS],
        allKeys: heavyKeys,
        callShare: percent(counts[HEAVY_CALLS], heavyCalls),
      }),
    );
  }
  document.getElementById("refusals").replaceChildren(
    ...lines.map((line) => {
      const paragraph = document.createElement("p");
      paragraph.textContent = line;
      return paragraph;
    }),
  );
  const rows = grid.named
    .map(([key, all, heavy], index) => ({ key, all, heavy, refused: counts[NAMED][index] }))
    .filter((each) => each.refused)
    .sort((a, b) => b.refused - a.refused)
    .map(namedRow);
  const none = document.createElement("tr");
  none.insertCell().textContent = headgate.text("none");
  none.cells[0].colSpan = 4;
  none.cells[0].className = "empty";
  document.getElementById("named").replaceChildren(...(rows.length ? rows : [none]));
}

function namedRow({ key, all, heavy, refused }) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = key;
  if (heavy) {
    const badge = document.createElement("span");
    badge.className = "badge";
    badge.textContent = headgate.text("heavy");
    head.append(" ", badge);
  }
  row.append(head);
  for (const text of [all.toLocaleString(), refused.toLocaleString(), percent(refused, all)]) {
    const cell = row.insertCell();
    cell.className = "n";
    cell.textContent = text;
  }
  return row;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  upload();
});
cancel.addEventListener("click", () => {
  if (!running) return;
  running.cancelled = true;
  running.abort();
});
