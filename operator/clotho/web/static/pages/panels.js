// The tabs of a run besides its curves. Each returns an element; one that works on returns how to stop it as well.

import { getJson } from "/static/api.js";
import { copyButton, h, wide } from "/static/dom.js";
import { isOver, moment, number } from "/static/format.js";

const KINDS = { newest: "Newest", best: "Best", worst: "Worst" };
const LOG_MS = 4000;

export function samples({ samples: groups = [] }, memory) {
  if (groups.length === 0) return h("p", { class: "empty" }, "No answers are kept yet.");
  const box = h("div", { class: "samples" });

  function draw() {
    const present = Object.keys(KINDS).filter((kind) => groups.some((group) => group.kind === kind));
    const kind = present.includes(memory.kind) ? memory.kind : present[0];
    const found = groups.filter((group) => group.kind === kind);
    const index = Math.min(memory.index ?? 0, found.length - 1);
    const turn = (by) => () => { memory.index = index + by; draw(); };
    const choose = (wanted) => () => { memory.kind = wanted; memory.index = 0; draw(); };
    box.replaceChildren(
      h(
        "div",
        { class: "pager" },
        h("div", { class: "groups", role: "group", "aria-label": "Which groups" }, present.map((each) => h("button", { type: "button", "aria-pressed": String(each === kind), click: choose(each) }, KINDS[each]))),
        h("span", { class: "turn" },
          h("button", { class: "quiet", type: "button", disabled: index === 0, "aria-label": "Previous group", click: turn(-1) }, "←"),
          `${index + 1} of ${found.length}`,
          h("button", { class: "quiet", type: "button", disabled: index === found.length - 1, "aria-label": "Next group", click: turn(1) }, "→")),
      ),
      group(found[index]),
    );
  }

  draw();
  return box;
}

function group({ step, environment, version, prompt, answers = [] }) {
  const about = [`step ${step}`, environment, version !== undefined && version !== null && `policy version ${version}`].filter(Boolean);
  const rewards = answers.map((each) => each.reward).filter((each) => typeof each === "number");
  const [low, high] = [Math.min(0, ...rewards), Math.max(1, ...rewards)];
  return h(
    "article",
    { class: "group" },
    h("p", { class: "about" }, about.join(" · ")),
    h("h2", {}, "Prompt"),
    h("pre", { class: "untrusted prompt", dir: "auto" }, prompt ?? ""),
    h("h2", {}, answers.length === 1 ? "1 answer" : `${answers.length} answers`),
    answers.map((answer) =>
      h(
        "div",
        { class: "answer" },
        h("div", { class: "score" }, h("b", {}, number(answer.reward)), wide(h("span", { class: "bar active" }, h("span")), ((answer.reward ?? 0) - low) / (high - low || 1)), h("small", {}, `advantage ${number(answer.advantage)}`)),
        h("pre", { class: "untrusted", dir: "auto" }, answer.text),
      ),
    ),
  );
}

export function timeline({ timeline: moments = [] }) {
  const entries = moments.map(({ time, kind, title, text, isWarning }) =>
    h("li", { class: `of-${kind} ${isWarning ? "of-warning" : ""}` }, h("time", { datetime: time }, moment(time)), h("div", {}, h("b", {}, title), text && h("p", {}, text))),
  );
  return h("ol", { class: "timeline" }, entries.reverse());
}

export function components({ components: parts = [], run }) {
  const row = (part) =>
    h("tr", {}, h("th", { scope: "row" }, part.name), h("td", {}, part.state), h("td", { class: "figure" }, part.ranks ? `${part.ranks} ranks` : `${part.ready} / ${part.replicas}`),
      h("td", { class: "figure" }, part.restarts), h("td", { class: "long" }, h("code", {}, part.pod || "–"), part.message && h("small", {}, part.message)));
  const condition = (each) =>
    h("tr", {}, h("th", { scope: "row" }, each.type), h("td", {}, each.status), h("td", {}, each.reason), h("td", {}, moment(each.lastTransitionTime)), h("td", { class: "long" }, each.message));
  const table = (titles, rows) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows)));
  return h(
    "div",
    {},
    parts.length > 0 ? table(["Component", "State", "Ready", "Restarts", "Pod"], parts.map(row)) : h("p", { class: "empty" }, "No pods yet."),
    run.conditions.length > 0 && [h("h2", {}, "Conditions"), table(["Type", "Status", "Reason", "Since", "Message"], run.conditions.map(condition))],
  );
}

export function logs({ run }, memory) {
  const select = h("select", { "aria-label": "Which log" });
  const lines = h("pre", { class: "untrusted log", tabindex: "0", "aria-label": "Log" });
  const note = h("span", { class: "hint" });
  let timer = null;
  let isClosed = false;

  async function load() {
    clearTimeout(timer);
    try {
      const query = memory.source ? `?${new URLSearchParams({ source: memory.source })}` : "";
      show(await getJson(`/api/runs/${memory.namespace}/${memory.name}/logs${query}`));
    } catch (error) {
      note.textContent = error.message;
    }
    if (!isClosed) timer = setTimeout(load, LOG_MS);
  }

  function show({ sources, chosen, lines: found }) {
    const isAtEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 8;
    const names = sources.map(({ key, title, attempt }) => [key, attempt === null ? `${title}, running` : `${title}, attempt ${attempt}`]);
    if (select.dataset.names !== JSON.stringify(names)) {
      select.dataset.names = JSON.stringify(names);
      select.replaceChildren(...names.map(([key, title]) => h("option", { value: key }, title)));
    }
    select.hidden = names.length === 0;
    select.value = chosen;
    const text = found.join("\n");
    if (lines.textContent !== text) lines.textContent = text;
    lines.hidden = names.length === 0;
    note.textContent = names.length === 0 ? (isOver(run.phase) ? "Nothing was kept of this run's logs." : "No pods yet.") : "The last lines; `clotho run logs` prints them all.";
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  }

  select.addEventListener("change", () => { memory.source = select.value; load(); });
  load();
  return [h("div", { class: "logs" }, h("div", { class: "pager" }, select, note), lines), () => { isClosed = true; clearTimeout(timer); }];
}

export function settings({ settings: texts, commands = [] }) {
  const block = (title, text) => [h("div", { class: "block-title" }, h("h2", {}, title), copyButton(text)), h("pre", { class: "untrusted" }, text)];
  return h(
    "div",
    { class: "settings" },
    h("h2", {}, "Commands"),
    h("div", { class: "commands" }, commands.map(({ title, command }) => h("div", {}, h("span", {}, title), h("code", {}, command), copyButton(command)))),
    block("Manifest", texts.manifest),
    texts.resolved && block("What it resolved to", texts.resolved),
  );
}
