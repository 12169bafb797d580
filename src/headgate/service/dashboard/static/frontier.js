// The frontier of a log: rates against bursts on logarithmic scales, with a handle on one limit of the grid.
"use strict";

const FRONTIER_HEIGHT = 320;
const RATE_WIDTH = 68; // of its name below the chart
// Columns of a point of the grid, and of a row's frontier.
const [BURST, KEYS, CALLS, HEAVY_KEYS, HEAVY_CALLS, NAMED] = [0, 1, 2, 3, 4, 5];
const [HALF, , MOST, , ALL_KEYS] = [0, 1, 2, 3, 4];

function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, index) => {
    const distance = Math.abs(Math.log(value / wanted));
    if (distance < Math.abs(Math.log(values[best] / wanted))) best = index;
  });
  return best;
}

// grid: the document of RefusalGrid. Calls onMove({ row, point }) with each limit that is chosen.
function frontierChart(element, grid, onMove) {
  const { rows } = grid;
  const rates = rows.map((row) => row.per_minute);
  const bursts = rows.map((row) => row.points.map((point) => point[BURST]));
  let chart = null;
  let at = { row: 0, point: 0 };
  const handle = document.createElement("button");
  handle.type = "button";
  handle.className = "handle";
  handle.setAttribute("role", "slider");
  handle.setAttribute("aria-label", element.dataset.label);

  function place() {
    const x = chart.valToPos(rates[at.row], "x");
    const y = chart.valToPos(bursts[at.row][at.point], "y");
    handle.style.left = `${x}px`;
    handle.style.top = `${y}px`;
  }

  function choose(row, point) {
    row = Math.min(Math.max(row, 0), rows.length - 1);
    at = { row, point: Math.min(Math.max(point, 0), bursts[row].length - 1) };
    handle.setAttribute("aria-valuemin", bursts[row][0]);
    handle.setAttribute("aria-valuemax", bursts[row].at(-1));
    handle.setAttribute("aria-valuenow", bursts[row][at.point]);
    handle.setAttribute("aria-valuetext", limit());
    if (chart) place();
    onMove(at);
  }

  const limit = () => `${rows[at.row].rate} burst ${bursts[at.row][at.point]}`;

  // Another rate, with a burst as far above or below the line as now.
  function follow(row) {
    row = Math.min(Math.max(row, 0), rows.length - 1);
    const above = bursts[at.row][at.point] / rows[at.row].frontier[ALL_KEYS];
    choose(row, nearest(bursts[row], above * rows[row].frontier[ALL_KEYS]));
  }

  function chooseAt(event) {
    const box = chart.over.getBoundingClientRect();
    const rate = chart.posToVal(event.clientX - box.left, "x");
    const row = nearest(rates, rate > 0 ? rate : rates[0]);
    const burst = chart.posToVal(event.clientY - box.top, "y");
    choose(row, nearest(bursts[row], burst > 0 ? burst : 1));
  }

  // A finger drags the handle alone, or taps a limit: elsewhere it scrolls the page.
  function listen() {
    let dragging = false;
    chart.over.addEventListener("pointerdown", (event) => {
      const onHandle = event.target === handle;
      if (event.button !== 0 || (event.pointerType === "touch" && !onHandle)) return;
      dragging = true;
      chart.over.setPointerCapture(event.pointerId);
      if (!onHandle) chooseAt(event);
      handle.focus({ preventScroll: true });
      event.preventDefault();
    });
    chart.over.addEventListener("click", (event) => event.target !== handle && event.detail && chooseAt(event));
    chart.over.addEventListener("pointermove", (event) => dragging && chooseAt(event));
    for (const end of ["pointerup", "pointercancel"]) chart.over.addEventListener(end, () => (dragging = false));
  }

  handle.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: () => follow(at.row - 1),
      ArrowRight: () => follow(at.row + 1),
      ArrowUp: () => choose(at.row, at.point + 1),
      ArrowDown: () => choose(at.row, at.point - 1),
      Home: () => follow(0),
      End: () => follow(rows.length - 1),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });

  function axis(size) {
    return {
      stroke: colour("dim"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
      labelSize: 16,
      size,
      filter: (_, splits) => splits,
    };
  }

  // The rates whose names have room.
  function rateSplits(chart) {
    let last = -Infinity;
    return rates.filter((rate) => {
      const x = chart.valToPos(rate, "x");
      if (x - last < RATE_WIDTH) return false;
      last = x;
      return true;
    });
  }

  function line(name, dash, fill) {
    return { stroke: colour(name), width: 2, dash, fill: fill && colour(`${name}-fill`), points: { show: false } };
  }

  function make() {
    const width = Math.max(260, element.clientWidth);
    const lowest = Math.min(...bursts.flat(), ...rows.map((row) => row.frontier[HALF]));
    const highest = Math.max(...bursts.flat());
    const low = Math.max(0.8, lowest * 0.8);
    chart = new uPlot(
      {
        width,
        height: FRONTIER_HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { time: false, distr: 3, range: () => [rates[0] / 1.3, rates.at(-1) * 1.3] },
          y: { distr: 3, range: () => [low, highest * 1.25] },
        },
        axes: [
          { ...axis(30), splits: rateSplits, values: (_, splits) => splits.map((rate) => rows[rates.indexOf(rate)].rate) },
          {
            ...axis(48),
            label: headgate.text("burst"),
            splits: () => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000].filter((burst) => burst >= low && burst <= highest * 1.25),
            values: (_, splits) => splits.map(shortRate),
          },
        ],
        series: [
          {},
          line("candidate"),
          line("shadow", [6, 4]),
          { ...line("passed"), fill: colour("refused-fill"), fillTo: () => low },
        ],
      },
      [
        rates,
        rows.map((row) => row.frontier[HALF]),
        rows.map((row) => row.frontier[MOST]),
        rows.map((row) => row.frontier[ALL_KEYS]),
      ],
      element,
    );
    chart.over.append(handle);
    listen();
    place();
  }

  function redraw() {
    const focused = document.activeElement === handle;
    chart?.destroy();
    make();
    if (focused) handle.focus({ preventScroll: true });
  }
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(() => {
    const width = Math.max(260, element.clientWidth);
    if (chart && chart.width !== width) {
      chart.setSize({ width, height: FRONTIER_HEIGHT });
      place();
    }
  }).observe(element);
  make();
  return { choose, follow, limit, position: () => at };
}
