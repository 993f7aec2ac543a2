// Several runs over one another: curves in one colour for each run, then the settings in which they differ.

import { follow, getJson, inNamespaces } from "/static/api.js";
import { Cursor, FIGURES, chart, pointsOf } from "/static/chart.js";
import { h } from "/static/dom.js";
import { number, phaseTitle, shortValue, tone, whole } from "/static/format.js";
import { evaluated } from "/static/pages/run.js";

export function openCompare(root, { query, report, go }) {
  document.title = "Compare – Clotho";
  const content = h("div");
  root.append(h("p", { class: "crumbs" }, h("a", { href: "/" }, "Runs")), h("h1", {}, "Compare"), adding(query, go), content);
  if (!query.has("run")) {
    content.append(h("p", { class: "empty" }, "Choose runs to compare on the page of all runs."));
    return undefined;
  }
  const cursor = new Cursor();
  return follow(
    `/api/compare?${new URLSearchParams(query.getAll("run").map((key) => ["run", key]))}`,
    (parts) => {
      cursor.listeners.clear();
      content.replaceChildren(...compared(parts, query, go, cursor));
    },
    report,
  );
}

// A field with the other runs as suggestions.
function adding(query, go) {
  const list = h("datalist", { id: "known-runs" });
  const field = h("input", { list: "known-runs", placeholder: "Add a run: namespace/name", "aria-label": "Add a run" });
  getJson(inNamespaces("/api/runs", query)).then(({ parts }) => {
    const others = Object.keys(parts).filter((key) => key.includes("/") && !query.getAll("run").includes(key));
    list.replaceChildren(...others.slice(0, 500).map((key) => h("option", { value: key })));
  }).catch(() => {});
  const submit = (event) => {
    event.preventDefault();
    if (!/^[^/\s]+\/[^/\s]+$/.test(field.value.trim())) return;
    query.append("run", field.value.trim());
    go(`/compare?${query}`);
  };
  return h("form", { class: "adding", submit }, field, list, h("button", { type: "submit" }, "Add"));
}

function compared(parts, query, go, cursor) {
  const keys = parts.settings.runs;
  const places = query.getAll("run");
  const colours = keys.map((key) => places.indexOf(key));
  const without = (key) => `/compare?${new URLSearchParams(places.filter((each) => each !== key).map((each) => ["run", each]))}`;
  const names = nameThem(keys);
  const legend = keys.map((key, index) => {
    const { run } = parts[key];
    return h(
      "div",
      { class: "compared" },
      h("i", { class: `key colour-${colours[index] % 8}` }),
      h("div", {}, h("a", { href: `/runs/${key}` }, names[index]), h("small", {}, `${run.model} · ${whole(run.step)} / ${whole(run.steps)}`)),
      h("span", { class: `phase ${tone(run)}` }, phaseTitle(run)),
      h("b", { title: "Reward" }, number(run.reward)),
      h("button", { class: "quiet", "aria-label": `Remove ${run.name}`, click: () => go(without(key)) }, "×"),
    );
  });
  return [
    ...parts.missing.map((key) => h("p", { class: "hint" }, `There is no run ${key}, or you may not read it.`)),
    h("div", { class: "legend-table" }, legend),
    h("div", { class: "charts" }, charts(parts, keys, names, colours, cursor)),
    ...settings(parts.settings, names),
  ];
}

// The namespace only where it tells two runs apart.
function nameThem(keys) {
  const spaces = new Set(keys.map((key) => key.split("/")[0]));
  return keys.map((key) => (spaces.size > 1 ? key : key.split("/")[1]));
}

function charts(parts, keys, names, colours, cursor) {
  const over = (title, unit, pointsIn, dots = false) => {
    const all = keys.map((key, index) => ({ name: names[index], points: pointsIn(parts[key]), dots, colour: colours[index] }));
    const found = all.filter((each) => each.points.length > 0);
    return found.length > 0 && chart({ title, unit, series: found, cursor, colours: found.map((each) => each.colour), hasNames: false });
  };
  const measures = [...new Set(keys.flatMap((key) => evaluated(parts[key].evaluations ?? []).map(([title]) => title)))];
  const judged = measures.map((title) => over(title, "evaluation", ({ evaluations }) => Object.fromEntries(evaluated(evaluations ?? []))[title] ?? [], true));
  const figures = FIGURES.map(({ title, unit, figures: wanted }) => {
    const [first] = Object.keys(wanted);
    return over(title, unit, ({ series }) => pointsOf(series, first));
  });
  return [figures[0], ...judged, ...figures.slice(1)].filter(Boolean);
}

function settings({ different, same }, names) {
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), names.map((name) => h("th", { scope: "col" }, name))));
  const rows = different.map(({ setting, values }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, setting)), values.map((value) => h("td", {}, shortValue(value)))));
  const alike = same.map(({ setting, value }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, setting)), h("td", {}, shortValue(value))));
  return [
    h("h2", {}, "Settings that differ"),
    rows.length > 0 ? h("div", { class: "scroll" }, h("table", { class: "different" }, head, h("tbody", {}, rows))) : h("p", { class: "hint" }, names.length > 1 ? "All settings are equal." : "Add another run to see what differs."),
    alike.length > 0 && names.length > 1 && h("details", {}, h("summary", {}, `${alike.length} settings are the same`), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, alike)))),
  ].filter(Boolean);
}
