// Charts: one function for the time charts of all pages, in the colours of the theme, with changes of the rulebook.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function shortRate(number) {
  if (number >= 999950) return `${(number / 1e6).toFixed(1)}M`;
  if (number >= 9995) return `${(number / 1e3).toFixed(1)}k`;
  return number >= 100 || Number.isInteger(number) ? number.toFixed(0) : number.toFixed(1);
}

function clock(at, step) {
  const time = new Date(at * 1000);
  const parts = [time.getHours(), time.getMinutes()].concat(step < 60 ? [time.getSeconds()] : []);
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

// Draws a line where the rulebook changed, with the number of the version.
function markPlugin(marks) {
  return {
    hooks: {
      draw: (chart) => {
        const { ctx, bbox } = chart;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = colour("mark");
        ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
        let last = Infinity; // where the mark to the right stands: the newest come first
        for (const mark of [...marks()].sort((a, b) => b.at - a.at)) {
          const x = chart.valToPos(mark.at, "x", true);
          if (x < bbox.left || x > bbox.left + bbox.width || last - x < 6 * devicePixelRatio) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const crowded = last - x < 34 * devicePixelRatio;
          last = x;
          if (crowded) continue;
          const right = x > bbox.left + bbox.width - 40 * devicePixelRatio;
          ctx.textAlign = right ? "right" : "left";
          ctx.fillText(`v${mark.version}`, x + (right ? -4 : 4) * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
        }
        ctx.restore();
      },
    },
  };
}

// lines: [{ label, name of the colour, fill, dash }]. Returns { set(data, marks) }. `showTime` is for other times than
// the clock's: seconds since the beginning.
function timeChart(element, lines, height, showTime = clock) {
  let chart = null;
  let shown = null;
  let marks = [];
  const width = () => Math.max(200, element.clientWidth);
  function make() {
    const axis = {
      stroke: colour("dim"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const options = {
      width: width(),
      height,
      cursor: { points: { size: 6 }, y: false },
      legend: { live: true },
      scales: { x: { time: showTime === clock }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, space: 70, size: 28, values: (_, times, _axis, _space, step) => times.map((at) => showTime(at, step)) }, { ...axis, size: 46, values: (_, ticks) => ticks.map(shortRate) }],
      series: [
        { label: "", value: (_, at) => (at == null ? "" : showTime(at, 1)) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: colour(line.name),
          fill: line.fill ? colour(`${line.name}-fill`) : undefined,
          width: 1.6,
          dash: line.dash,
          points: { show: false },
          value: (_, number) => (number == null ? "" : shortRate(number)),
        })),
      ],
      plugins: [markPlugin(() => marks)],
    };
    element.replaceChildren();
    chart = new uPlot(options, shown, element);
    showLast();
  }
  // The legend has the numbers under the pointer, and the last ones where there is none.
  function showLast() {
    if (showTime === clock && !(chart.cursor.left >= 0)) chart.setLegend({ idx: shown[0].length - 1 }, false);
  }
  const redraw = () => {
    if (chart) {
      chart.destroy();
      make();
    }
  };
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(() => {
    if (chart && chart.width !== width()) chart.setSize({ width: width(), height });
  }).observe(element);
  return {
    set(data, changes) {
      shown = data;
      marks = changes ?? marks;
      if (chart) {
        chart.setData(data);
        showLast();
      } else make();
    },
  };
}
