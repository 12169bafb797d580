// The editor of the rulebook: line numbers, what is wrong while one types, what changes, and the preview.
"use strict";

const CHECK_MS = 350;
const MAX_LOG_BYTES = 8 * 1024 * 1024;
const form = document.getElementById("book");
const text = document.getElementById("text");
const lines = document.getElementById("lines");
const checked = document.getElementById("checked");
const problems = document.getElementById("problems");
const changes = document.getElementById("changes");
const preview = document.getElementById("preview");
let wrong = new Set();
let checks = 0;
let leaving = false;

function number() {
  const count = text.value.split("\n").length;
  lines.replaceChildren(
    ...Array.from({ length: count }, (_, index) => {
      const line = document.createElement("span");
      line.textContent = `${index + 1}\n`;
      if (wrong.has(index + 1)) line.className = "wrong";
      return line;
    }),
  );
  lines.scrollTop = text.scrollTop;
}

function goTo(line) {
  const before = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  const end = text.value.indexOf("\n", before);
  text.focus();
  text.setSelectionRange(before, end < 0 ? text.value.length : end);
  const height = text.scrollHeight / text.value.split("\n").length;
  text.scrollTop = Math.max(0, (line - 5) * height);
}

function paragraph(words, name) {
  const element = document.createElement("p");
  element.textContent = words;
  element.className = name;
  return element;
}

function showProblems(found, warnings) {
  wrong = new Set(found.map((each) => each.line).filter(Boolean));
  const items = found.map((each) => {
    const item = document.createElement("p");
    item.className = "wrong";
    if (each.line) {
      const link = document.createElement("button");
      link.type = "button";
      link.className = "line";
      link.textContent = `${form.elements.format.value}:${each.line}`;
      link.addEventListener("click", () => goTo(each.line));
      item.append(link, " ");
    }
    item.append(each.problem);
    return item;
  });
  items.push(...warnings.map((warning) => paragraph(warning, "warning")));
  problems.replaceChildren(...(items.length ? items : [paragraph(headgate.text("valid"), "empty")]));
  checked.textContent = found.length ? `${found.length} ${headgate.text("problems")}` : headgate.text("valid");
  checked.className = `state ${found.length ? "bad" : "good"}`;
  number();
}

function fields() {
  const { form: token, format } = form.elements;
  return { form: token.value, format: format.value, text: text.value };
}

async function check() {
  const mine = ++checks;
  checked.textContent = headgate.text("checking");
  checked.className = "state idle";
  let result;
  try {
    result = await headgate.post("/rules/check", fields());
  } catch {
    checked.textContent = document.getElementById("live").dataset.off;
    return;
  }
  if (mine !== checks) return; // a later check is on the way
  if (result.error && !result.problems?.length) result.problems = [{ line: null, problem: result.error }];
  showProblems(result.problems, result.warnings ?? []);
  if (result.html !== undefined && !result.problems.length) {
    changes.innerHTML = result.html;
  }
}

let timer = 0;
text.addEventListener("input", () => {
  number();
  clearTimeout(timer);
  timer = setTimeout(check, CHECK_MS);
});
text.addEventListener("scroll", () => (lines.scrollTop = text.scrollTop));

// A new line begins as far in as the one before. Tab leaves the field, as everywhere.
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || text.readOnly) return;
  const start = text.value.lastIndexOf("\n", text.selectionStart - 1) + 1;
  const indent = /^ */.exec(text.value.slice(start, text.selectionStart))[0];
  if (!indent) return;
  event.preventDefault();
  document.execCommand("insertText", false, `\n${indent}`);
});

document.getElementById("preview-button").addEventListener("click", async () => {
  preview.replaceChildren(paragraph(headgate.text("replaying") + " …", "empty"));
  try {
    const [file] = document.getElementById("log")?.files ?? [];
    if (file && file.size > MAX_LOG_BYTES) throw new Error(`${file.name}: 8 MB`);
    const log = file ? { log: await file.text() } : {};
    const result = await headgate.post("/rules/preview", { ...fields(), ...log });
    if (result.error) preview.replaceChildren(paragraph(result.error, "problem"));
    else preview.innerHTML = result.html;
  } catch (error) {
    preview.replaceChildren(paragraph(String(error), "problem"));
  }
});

form.addEventListener("submit", () => (leaving = true));
addEventListener("beforeunload", (event) => {
  if (!leaving && !text.readOnly && text.value !== headgate.data.saved) event.preventDefault();
});

number();
if (text.value !== headgate.data.saved) check();
