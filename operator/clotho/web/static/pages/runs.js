// All runs that one may see: filters are in the address, rows change by themselves.

import { follow, inNamespaces } from "/static/api.js";
import { sparkline } from "/static/chart.js";
import { h, ticking, wide } from "/static/dom.js";
import { age, isOver, number, phaseTitle, timeLeft, tone, whole } from "/static/format.js";

const AT_ONCE = 200;
const GROUPS = ["Running", "Queued", "Starting", "Completed", "Failed", "Stopped", "Suspended"];

export function openRuns(root, { query, report, go }) {
  document.title = "Runs – Clotho";
  const chosen = new Set();
  let parts = {};
  let shown = AT_ONCE;
  const search = h("input", { type: "search", placeholder: "Name, model or environment", "aria-label": "Filter runs", value: query.get("q") ?? "" });
  const groups = h("div", { class: "groups", role: "group", "aria-label": "Phase" });
  const places = h("select", { "aria-label": "Namespace" });
  const body = h("div", { class: "runs", role: "table", "aria-label": "Runs" });
  const bar = h("div", { class: "chosen", hidden: true });
  root.append(h("h1", {}, "Runs"), h("div", { class: "filters" }, groups, h("span", { class: "inputs" }, search, places)), body, bar);

  const remember = (name, value) => {
    if (value) query.set(name, value);
    else query.delete(name);
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    shown = AT_ONCE;
    draw();
  };
  search.addEventListener("input", () => remember("q", search.value.trim()));
  places.addEventListener("change", () => remember("namespace", places.value));

  function draw() {
    const rows = Object.entries(parts).filter(([key]) => key.includes("/")).map(([key, run]) => ({ ...run, key, group: groupOf(run) }));
    drawPlaces(rows);
    const matching = rows.filter(matches(query));
    drawGroups(matching);
    const visible = matching.filter((run) => !query.get("phase") || run.group === query.get("phase")).sort(byImportance);
    body.replaceChildren(head(), ...visible.slice(0, shown).map((run) => row(run, parts.queue?.[run.key], chosen, drawBar)));
    if (visible.length > shown) {
      const more = visible.length - shown;
      body.append(h("button", { class: "quiet more", click: () => { shown += AT_ONCE; draw(); } }, `Show ${Math.min(more, AT_ONCE)} of ${whole(more)} more`));
    }
    if (visible.length === 0) body.append(nothing(parts.scope, rows.length, query, go));
    drawBar();
  }

  function drawGroups(rows) {
    const counted = new Map();
    for (const run of rows) counted.set(run.group, (counted.get(run.group) ?? 0) + 1);
    const button = (value, title, count) =>
      h("button", { type: "button", "aria-pressed": String((query.get("phase") ?? "") === value), click: () => remember("phase", value) }, title, h("small", {}, whole(count)));
    const wanted = GROUPS.filter((group) => counted.has(group) || query.get("phase") === group);
    groups.replaceChildren(button("", "All", rows.length), ...wanted.map((group) => button(group, group, counted.get(group) ?? 0)));
  }

  function drawPlaces(rows) {
    const names = [...new Set([...rows.map((run) => run.namespace), ...(query.get("namespace") ? [query.get("namespace")] : [])])].sort();
    if (places.dataset.names === names.join()) return;
    places.dataset.names = names.join();
    places.replaceChildren(h("option", { value: "" }, "All namespaces"), ...names.map((name) => h("option", { value: name }, name)));
    places.value = query.get("namespace") ?? "";
    places.hidden = names.length < 2;
  }

  function drawBar() {
    bar.hidden = chosen.size === 0;
    const address = `/compare?${new URLSearchParams([...chosen].map((key) => ["run", key]))}`;
    const clear = () => { chosen.clear(); draw(); };
    bar.replaceChildren(
      h("span", {}, chosen.size === 1 ? "1 run chosen" : `${chosen.size} runs chosen`),
      chosen.size > 1 ? h("a", { class: "button", href: address }, "Compare") : h("span", { class: "hint" }, "Choose another to compare"),
      h("button", { class: "quiet", click: clear }, "Clear"),
    );
  }

  return follow(inNamespaces("/api/runs", query), (state) => { parts = state; draw(); }, report);
}

const groupOf = (run) => (run.isQueued && !isOver(run.phase) ? "Queued" : { Pending: "Starting", Stopping: "Running" }[run.phase] ?? run.phase);

const matches = (query) => (run) => {
  const words = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const text = [run.name, run.namespace, run.model, ...run.environments].join(" ").toLowerCase();
  return (!query.get("namespace") || run.namespace === query.get("namespace")) && words.every((word) => text.includes(word));
};

const WEIGHT = { Running: 0, Starting: 0, Queued: 1 };
const byImportance = (a, b) => (WEIGHT[a.group] ?? 2) - (WEIGHT[b.group] ?? 2) || (b.created ?? "").localeCompare(a.created ?? "") || a.key.localeCompare(b.key);

const head = () =>
  h("div", { class: "row head", role: "row" }, ["", "Run", "Phase", "Progress", "Reward", "Tokens/s", "GPUs", "Age"].map((title) => h("span", { role: "columnheader" }, title)));

function row(run, position, chosen, changed) {
  const choose = h("input", {
    type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.key),
    change: (event) => { event.target.checked ? chosen.add(run.key) : chosen.delete(run.key); changed(); },
  });
  const cell = (name, ...content) => h("span", { role: "cell", class: name }, content);
  return h(
    "div",
    { class: "row", role: "row", "data-run": run.key },
    cell("choose", choose),
    cell("name", h("a", { href: `/runs/${run.key}` }, run.name), h("small", {}, `${run.namespace} · ${run.model || "–"}`)),
    cell("state", h("span", { class: `phase ${tone(run)}`, title: run.message }, phaseTitle(run)), position && h("small", {}, `position ${position}`)),
    cell("progress", progress(run)),
    cell("reward", sparkline(run.rewards), h("b", {}, number(run.reward))),
    cell("figure speed", whole(run.tokensPerSecond)),
    cell("figure gpus", run.gpus ?? "–"),
    cell("figure age", ticking(() => age(run.created))),
  );
}

export function progress(run) {
  const share = run.steps ? run.step / run.steps : 0;
  const bar = wide(h("span", { class: `bar ${tone(run)}`, role: "img", "aria-label": `${Math.round(share * 100)} %` }, h("span")), share);
  return [bar, h("small", {}, h("span", {}, `${whole(run.step)} / ${whole(run.steps)}`), ticking(() => timeLeft(run)))];
}

function nothing(scope, count, query, go) {
  if (scope === undefined) return h("p", { class: "empty" }, "Loading …");
  if (count > 0) return h("p", { class: "empty" }, "No run matches these filters.");
  if (!scope.problem) return h("p", { class: "empty" }, "No runs yet. `clotho run start` makes one, or apply a TrainingRun.");
  const field = h("input", { placeholder: "team-a, team-b", "aria-label": "Namespaces", value: query.get("namespaces") ?? "" });
  const submit = (event) => {
    event.preventDefault();
    go(`/?${new URLSearchParams({ namespaces: field.value.replace(/\s+/g, "") })}`);
  };
  const ask = h("form", { class: "namespaces", submit }, h("label", {}, "Look into these namespaces ", field), h("button", { type: "submit" }, "Show"));
  return h("div", { class: "empty" }, h("p", {}, scope.problem), ask);
}
