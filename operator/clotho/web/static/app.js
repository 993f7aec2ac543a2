// Starts the page: who looks, which page the address names, and links that do not load everything again.

import { forgetToken, getJson, hasToken, keepForAllTabs, postJson, setToken } from "/static/api.js";
import { h } from "/static/dom.js";
import { openCompare } from "/static/pages/compare.js";
import { openEnvironments } from "/static/pages/environments.js";
import { openRun } from "/static/pages/run.js";
import { openRuns } from "/static/pages/runs.js";
import { openTests } from "/static/pages/tests.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const leave = document.getElementById("leave");
const STATES = { live: "Live", waiting: "Reconnecting", refused: "Not connected", "": "" };
let mode = "local";
let close = () => {};

const ROUTES = [
  [/^\/(?:runs)?$/, openRuns],
  [/^\/runs\/([^/]+)\/([^/]+)$/, openRun],
  [/^\/compare$/, openCompare],
  [/^\/environments$/, openEnvironments],
  [/^\/tests$/, openTests],
];

function show() {
  close();
  report("");
  for (const link of document.querySelectorAll("header nav a")) {
    const isHere = link.pathname === location.pathname || (link.pathname === "/" && /^\/(runs|compare)/.test(location.pathname));
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!hasToken()) return signIn();
  leave.hidden = mode !== "token";
  for (const [pattern, open] of ROUTES) {
    const found = pattern.exec(location.pathname);
    if (found) {
      main.replaceChildren();
      close = open(main, { names: found.slice(1), query: new URLSearchParams(location.search), report, go }) ?? (() => {});
      return undefined;
    }
  }
  main.replaceChildren(h("p", { class: "empty" }, "There is no such page."));
  return undefined;
}

export function go(path) {
  history.pushState(null, "", path);
  show();
  scrollTo(0, 0);
}

function report(state, error) {
  connection.textContent = STATES[state];
  connection.dataset.state = state;
  if (error?.status === 401) {
    forgetToken();
    signIn(error.message);
  } else if (error) {
    main.replaceChildren(h("p", { class: "empty" }, error.message));
  }
}

function signIn(problem = "") {
  close();
  close = () => {};
  leave.hidden = true;
  document.title = "Clotho";
  if (mode === "local") {
    const words = "Open the address that `clotho ui` printed; its end lets this browser in.";
    main.replaceChildren(h("section", { class: "sign-in" }, h("h1", {}, "Not signed in"), h("p", {}, words)));
    return;
  }
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = h(
    "form",
    {
      submit: (event) => {
        event.preventDefault();
        setToken(field.value.trim());
        show();
      },
    },
    h("label", { for: "token" }, "Your token for this cluster"),
    field,
    h("button", { type: "submit" }, "Sign in"),
  );
  const words = "You see what the token may read, and it is kept in this tab only. `kubectl create token NAME` makes one.";
  main.replaceChildren(
    h("section", { class: "sign-in" }, h("h1", {}, "Sign in"), problem && h("p", { class: "problem", role: "alert" }, problem), form, h("p", {}, words)),
  );
  field.focus();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  if (!link || !isPlain || link.origin !== location.origin || link.target || link.hash) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  } else if (event.key === "Escape" && isTyping) {
    event.target.blur();
  }
});
addEventListener("popstate", show);
leave.addEventListener("click", () => {
  forgetToken();
  show();
});

async function start() {
  const config = await getJson("/api/config");
  mode = config.mode;
  if (mode === "local") keepForAllTabs();
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("key")) setToken(given.get("key"));
  if (given.has("code")) {
    try {
      setToken((await postJson("/api/key", { code: given.get("code") })).key);
    } catch {
      // a code works once: a page that is loaded again has the key already
    }
  }
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  show();
}

start().catch(() => {
  main.replaceChildren(h("p", { class: "empty" }, "The server does not answer. Is `clotho ui` still running?"));
});
