// Inference tests: how well served models do in an environment before anything is trained.

import { follow, inNamespaces } from "/static/api.js";
import { h, ticking, wide } from "/static/dom.js";
import { age, number, tone } from "/static/format.js";

export function openTests(root, { query, report }) {
  document.title = "Tests – Clotho";
  const list = h("div", { class: "cards" });
  const opened = new Set();
  root.append(h("h1", {}, "Inference tests"), list);
  return follow(
    inNamespaces("/api/tests", query),
    (parts) => {
      const all = Object.entries(parts).filter(([key]) => key.includes("/")).sort(([, a], [, b]) => (b.created ?? "").localeCompare(a.created ?? ""));
      const words = parts.scope?.problem || "No tests yet. `clotho test ENVIRONMENT` tries one with served models.";
      list.replaceChildren(...(all.length > 0 ? all.map(([key, test]) => card(key, test, opened)) : [h("p", { class: "empty" }, words)]));
    },
    report,
  );
}

function card(key, test, opened) {
  return h(
    "article",
    { class: "card" },
    h("div", { class: "title" }, h("h2", {}, test.name), h("span", { class: `phase ${tone(test)}` }, test.phase)),
    h("p", { class: "about" }, [test.namespace, test.environment, `${test.steps} groups of ${test.groupSize}`].join(" · "), " · ", ticking(() => age(test.created))),
    test.message && h("p", {}, test.message),
    test.models.length > 0 && h("div", { class: "scroll" }, h("table", { class: "models" },
      h("thead", {}, h("tr", {}, ["Model", "Correct", "Groups with a correct answer", "Answers"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, test.models.map((model) => row(model, model.name === test.bestModel))))),
    test.models.some(({ samples }) => samples?.length) && examples(key, test, opened),
  );
}

function row(model, isBest) {
  const share = (value) => [wide(h("span", { class: "bar active" }, h("span")), value ?? 0), h("b", {}, `${number((value ?? 0) * 100)} %`)];
  return h("tr", { class: isBest ? "best" : "" },
    h("th", { scope: "row" }, model.name, h("small", {}, [model.size, isBest && "best", model.phase !== "Completed" && model.phase].filter(Boolean).join(", ")), model.error && h("small", { class: "problem untrusted" }, model.error)),
    h("td", { class: "share" }, share(model.accuracy)),
    h("td", { class: "share" }, share(model.stepSuccessRate)),
    h("td", { class: "figure" }, `${model.correct ?? 0} / ${model.completions ?? 0}`));
}

function examples(key, test, opened) {
  const toggle = (event) => (event.target.open ? opened.add(key) : opened.delete(key));
  const sample = (model) => ({ prompt, answer, score }) =>
    h("div", { class: "answer" }, h("div", { class: "score" }, h("b", {}, number(score)), h("small", {}, model.name)),
      h("div", {}, h("pre", { class: "untrusted prompt", dir: "auto" }, prompt), h("pre", { class: "untrusted", dir: "auto" }, answer)));
  return h("details", { toggle, open: opened.has(key) }, h("summary", {}, "Prompts and answers"), test.models.map((model) => (model.samples ?? []).map(sample(model))));
}
