// The playground: draws the simulated traffic of each limit, and keeps the form's numbers in the address.
"use strict";

function elapsed(at, step) {
  if (at >= 7200) return `${(at / 3600).toFixed(step < 3600 ? 1 : 0)} h`;
  return at >= 300 ? `${Math.floor(at / 60)} min${at % 60 ? ` ${at % 60} s` : ""}` : `${at} s`;
}

headgate.data.series.forEach((series, number) => {
  timeChart(
    document.getElementById(`chart${number}`),
    [
      { label: headgate.text("Offered"), name: "mark", dash: [4, 4] },
      { label: headgate.text("Passed"), name: "passed", fill: true },
      { label: headgate.text("Delayed"), name: "delayed" },
      { label: headgate.text("Refused"), name: "refused", fill: true },
    ],
    190,
    elapsed,
  ).set([series.t, series.offered, series.passed, series.delayed, series.refused]);
});

if (headgate.data.series.length) {
  const form = document.getElementById("playground");
  const fields = [...new FormData(form)].filter(([name, value]) => name !== "form" && value);
  history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(fields)}`);
}
