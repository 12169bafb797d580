// What every page does: the theme, times in the browser's zone, the live stream, and whether it is there.
"use strict";

const ROOT = "/dashboard";

const headgate = {
  data: JSON.parse(document.getElementById("data")?.textContent ?? "{}"),
  listeners: [],
  // Calls `listener` with every event of the live stream.
  onEvent(listener) {
    this.listeners.push(listener);
  },
  text(word) {
    return this.data.texts?.[word] ?? word;
  },
  // Returns a document for the script; throws unless there is one.
  async get(path) {
    const response = await fetch(ROOT + path, { headers: { "x-requested-with": "page" } });
    if (!response.ok) throw new Error(String(response.status));
    return response.json();
  },
  // The token of the form goes ahead of the body: the service checks it before it reads the rest.
  async post(path, { form, ...fields }) {
    const response = await fetch(ROOT + path, {
      method: "POST",
      headers: { "x-requested-with": "page", "x-headgate-form": form, "content-type": "application/json" },
      body: JSON.stringify(fields),
    });
    return response.json();
  },
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const year = 365 * 86400;
  document.cookie = `headgate_theme=${theme}; path=${ROOT}; max-age=${year}; samesite=strict${location.protocol === "https:" ? "; secure" : ""}`;
  document.dispatchEvent(new Event("theme"));
}

document.getElementById("theme")?.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme;
  const shown = now === "auto" ? (dark ? "dark" : "light") : now;
  setTheme(shown === "dark" ? "light" : "dark");
});

function localTimes(scope) {
  const format = new Intl.DateTimeFormat(document.documentElement.lang, {
    month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
  });
  for (const each of scope.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    each.title = at.toISOString();
    each.textContent = format.format(at);
  }
}

function follow() {
  const sign = document.getElementById("live");
  if (!sign) return;
  const show = (on) => {
    sign.dataset.state = on ? "on" : "off";
    sign.textContent = on ? sign.dataset.on : sign.dataset.off;
  };
  const open = () => {
    const stream = new EventSource(`${ROOT}/live`);
    stream.onopen = () => show(true);
    stream.onmessage = (message) => {
      const event = JSON.parse(message.data);
      for (const listener of headgate.listeners) listener(event);
    };
    // A browser comes again by itself if the stream breaks off, but not if it got an error in its place.
    stream.onerror = () => {
      show(false);
      if (stream.readyState === EventSource.CLOSED) setTimeout(open, 1500);
    };
    addEventListener("pagehide", () => stream.close());
  };
  open();
}

localTimes(document);
addEventListener("DOMContentLoaded", follow);
