// The catalogue: each environment with the fields that a run can set.

import { follow, inNamespaces } from "/static/api.js";
import { h } from "/static/dom.js";
import { shortValue } from "/static/format.js";

export function openEnvironments(root, { query, report }) {
  document.title = "Environments – Clotho";
  const search = h("input", { type: "search", placeholder: "Name or description", "aria-label": "Filter environments", value: query.get("q") ?? "" });
  const list = h("div", { class: "cards" });
  const opened = new Set();
  let parts = {};
  root.append(h("h1", {}, "Environments"), h("div", { class: "filters" }, search), list);
  search.addEventListener("input", () => {
    if (search.value) query.set("q", search.value);
    else query.delete("q");
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    draw();
  });

  function draw() {
    const all = Object.entries(parts).filter(([key]) => key.includes("/")).sort(([a], [b]) => a.localeCompare(b));
    const found = all.filter(([key, { description }]) => `${key} ${description}`.toLowerCase().includes(search.value.toLowerCase()));
    const words = parts.scope?.problem || (all.length > 0 ? "No environment matches." : "No environments yet. `clotho env discover` makes a catalogue from Python files.");
    list.replaceChildren(...(found.length > 0 ? found.map(([key, each]) => card(key, each, opened)) : [h("p", { class: "empty" }, words)]));
  }

  return follow(inNamespaces("/api/environments", query), (state) => { parts = state; draw(); }, report);
}

function card(key, environment, opened) {
  const toggle = (event) => (event.target.open ? opened.add(key) : opened.delete(key));
  const count = environment.fields.length + environment.omittedFields;
  return h(
    "article",
    { class: "card" },
    h("div", { class: "title" }, h("h2", {}, environment.name), h("span", { class: `phase ${environment.isReady ? "good" : "warning"}` }, environment.isReady ? "Ready" : "Not ready")),
    h("p", { class: "about" }, [environment.namespace, environment.entry].join(" · ")),
    environment.description && h("p", { class: "untrusted", dir: "auto" }, environment.description),
    !environment.isReady && environment.message && h("p", { class: "problem" }, environment.message),
    count > 0 && h("details", { toggle, open: opened.has(key) }, h("summary", {}, count === 1 ? "1 setting" : `${count} settings`), fields(environment)),
  );
}

function fields({ fields: all, omittedFields }) {
  const row = (field) =>
    h("tr", {},
      h("th", { scope: "row" }, h("code", {}, field.name), h("small", {}, [field.type, field.isRequired && "required", field.isFixed && "fixed"].filter(Boolean).join(", "))),
      h("td", { class: "long" }, h("code", {}, shortValue(field.value ?? field.default))),
      h("td", { class: "long untrusted", dir: "auto" }, field.description, limits(field) && h("small", {}, limits(field))));
  return h("div", { class: "scroll" },
    h("table", {}, h("thead", {}, h("tr", {}, ["Setting", "Value", "Meaning"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, all.map(row))),
    omittedFields > 0 && h("p", { class: "hint" }, `${omittedFields} more did not fit into the object.`));
}

function limits({ choices, limits: bounds }) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = bounds;
  const words = [
    choices.length > 0 && `one of ${choices.map(shortValue).join(", ")}`,
    minimum !== undefined && `at least ${minimum}`, exclusiveMinimum !== undefined && `more than ${exclusiveMinimum}`,
    maximum !== undefined && `at most ${maximum}`, exclusiveMaximum !== undefined && `less than ${exclusiveMaximum}`,
  ];
  return words.filter(Boolean).join(", ");
}
