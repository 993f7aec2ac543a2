// One run: where it is, its curves, and everything else in tabs. Only what has changed is drawn again.

import { follow } from "/static/api.js";
import { Cursor, FIGURES, bandOf, chart, pointsOf } from "/static/chart.js";
import { h, ticking } from "/static/dom.js";
import { age, duration, isOver, number, phaseTitle, secondsSince, tone, whole } from "/static/format.js";
import { components, logs, samples, settings, timeline } from "/static/pages/panels.js";
import { progress } from "/static/pages/runs.js";

const TABS = [
  ["curves", "Curves", ["series", "evaluations"], curves],
  ["samples", "Samples", ["samples"], samples],
  ["timeline", "Timeline", ["timeline"], timeline],
  ["components", "Components", ["components", "run"], components],
  ["logs", "Logs", [], logs],
  ["settings", "Settings", ["settings", "commands"], settings],
];

export function openRun(root, { names, query, report }) {
  const [namespace, name] = names;
  document.title = `${name} – Clotho`;
  const memory = { namespace, name, cursor: new Cursor() };
  const top = h("section", { class: "run-top" });
  const tabs = h("div", { class: "tabs", role: "tablist" });
  const panel = h("section", { class: "panel", role: "tabpanel" });
  let parts = {};
  let leave = () => {};
  root.append(top, tabs, panel);

  const here = () => TABS.find(([key]) => key === query.get("tab")) ?? TABS[0];

  function open(key) {
    if (key === TABS[0][0]) query.delete("tab");
    else query.set("tab", key);
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    leave();
    drawTabs();
    drawPanel();
  }

  function drawTabs() {
    tabs.replaceChildren(
      ...TABS.map(([key, title]) => {
        const isHere = key === here()[0];
        return h("button", { role: "tab", type: "button", "aria-selected": String(isHere), tabindex: isHere ? "0" : "-1", "data-tab": key, click: () => open(key) }, title);
      }),
    );
  }

  tabs.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const index = TABS.findIndex(([key]) => key === here()[0]);
    open(TABS[(index + move + TABS.length) % TABS.length][0]);
    tabs.querySelector("[aria-selected=true]").focus();
  });

  function drawPanel() {
    memory.cursor.listeners.clear();
    const [content, close] = [here()[3](parts, memory)].flat();
    leave = close ?? (() => {});
    panel.replaceChildren(content);
  }

  const stop = follow(
    `/api/runs/${namespace}/${name}`,
    (state, changed) => {
      parts = state;
      if (parts.missing) {
        root.replaceChildren(h("p", { class: "empty" }, parts.missing));
        return;
      }
      if (!top.isConnected) root.replaceChildren(top, tabs, panel);
      if (changed.has("run") || changed.has("unread")) top.replaceChildren(...heading(parts));
      if (!tabs.hasChildNodes()) drawTabs();
      if (!panel.hasChildNodes() || here()[2].some((key) => changed.has(key))) drawPanel();
    },
    report,
  );
  return () => {
    stop();
    leave();
  };
}

function heading({ run, unread }) {
  const place = [run.namespace, run.model, ...run.environments].filter(Boolean);
  const tile = (title, value) => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, value));
  const [best] = run.evaluated;
  const elapsed = () => duration(run.ended ? (Date.parse(run.ended) - Date.parse(run.created)) / 1000 : secondsSince(run.created));
  const compare = `/compare?${new URLSearchParams({ run: `${run.namespace}/${run.name}` })}`;
  const wandb = run.wandb && h("a", { href: run.wandb, rel: "noopener noreferrer", target: "_blank" }, "Weights & Biases");
  const links = h("span", { class: "links" }, wandb, h("a", { href: compare }, "Compare with others"));
  return [
    h("p", { class: "crumbs" }, h("a", { href: "/" }, "Runs")),
    h("div", { class: "title" }, h("h1", {}, run.name), h("span", { class: `phase ${tone(run)}` }, phaseTitle(run)), links),
    h("p", { class: "about" }, place.join(" · ")),
    h("p", { class: `message ${run.phase === "Failed" ? "problem" : ""}` }, run.message),
    h("div", { class: "progress wide" }, progress(run)),
    h(
      "dl",
      { class: "tiles" },
      tile("Reward", number(run.reward)),
      tile("Tokens/s", whole(run.tokensPerSecond)),
      tile("GPUs", run.gpus ?? "–"),
      tile("Checkpoint", run.checkpoint ? `step ${whole(run.checkpoint.step)}` : "–"),
      best && tile("Best evaluation", [number(best.best), h("small", { title: `${best.environment}: ${best.figure}` }, `step ${whole(best.bestStep)}`)]),
      tile("Restarts", run.restarts),
      tile(isOver(run.phase) ? "Took" : "Age", run.ended ? elapsed() : ticking(() => age(run.created))),
    ),
    ...(unread ?? []).map((text) => h("p", { class: "hint" }, text)),
  ];
}

function curves({ series, evaluations = [] }, { cursor }) {
  const charts = FIGURES.map(({ title, unit, figures, spread }) => {
    const found = Object.entries(figures)
      .map(([key, name]) => ({ name, points: pointsOf(series, key), band: spread && bandOf(series, key, spread) }))
      .filter((each) => each.points.length > 0);
    return found.length > 0 && chart({ title, unit: spread && found[0].band.length ? "mean and spread" : unit, series: found, cursor });
  });
  const judged = evaluated(evaluations).map(([title, points]) => chart({ title, unit: "evaluation", series: [{ name: title, points, dots: true }], cursor }));
  const all = [charts[0], ...judged, ...charts.slice(1)].filter(Boolean); // the reward, and how it holds where nothing is trained
  return all.length > 0 ? h("div", { class: "charts" }, all) : h("p", { class: "empty" }, "No step yet. Curves appear with the first one.");
}

// Figures of evaluations by environment and name, as points over steps.
export function evaluated(evaluations) {
  const found = new Map();
  for (const { step, environment, figures } of evaluations) {
    for (const [name, value] of Object.entries(figures)) {
      const title = `${environment}: ${name}`;
      found.set(title, [...(found.get(title) ?? []), [step, value]]);
    }
  }
  return [...found];
}
