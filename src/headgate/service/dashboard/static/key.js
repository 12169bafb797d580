// A key: keeps what is left to it, and how often it calls, current.
"use strict";

const FACTS_MS = 2000;

setInterval(async () => {
  if (document.hidden) return;
  const { rule, key } = headgate.data;
  try {
    const { html } = await headgate.get(`/key/facts?${new URLSearchParams({ rule, key })}`);
    const facts = document.getElementById("facts");
    if (facts.innerHTML !== html) facts.innerHTML = html;
  } catch {
    // The sign of the live stream says that there is no connection; the next try comes soon.
  }
}, FACTS_MS);
