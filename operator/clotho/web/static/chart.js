// Curves over steps, drawn as SVG: axes, several series, a band, and the values under the pointer or the arrow keys.

import { h, svg } from "/static/dom.js";
import { number, tick as axis } from "/static/format.js";

const HEIGHT = 176;
const MARGIN = { top: 10, right: 10, bottom: 24, left: 46 };

// The same step is marked in all charts of a page.
export class Cursor {
  constructor() {
    this.step = null;
    this.listeners = new Set();
  }

  move(step) {
    if (step === this.step) return;
    this.step = step;
    for (const listener of this.listeners) listener(step);
  }
}

// `series`: [{ name, points: [[step, value]], band?: [[step, low, high]], dots? }], each in the colour of its place.
export function chart({ title, unit = "", series, cursor = new Cursor(), colours = null, hasNames = series.length > 1 }) {
  const box = h("div", { class: "plot" });
  const legend = h("span", { class: "legend" });
  const figure = h(
    "figure",
    { class: "chart", tabindex: "0", role: "group", "aria-label": `${title}; arrow keys read the values` },
    h("figcaption", {}, h("span", { class: "chart-title" }, title, unit && h("small", {}, unit)), legend),
    box,
  );
  const steps = [...new Set(series.flatMap((each) => each.points.map(([step]) => step)))].sort((a, b) => a - b);
  const colour = (index) => `colour-${(colours?.[index] ?? index) % 8}`;
  let place = null;

  function draw(width) {
    const scale = scales(series, steps, width);
    place = scale;
    box.replaceChildren(picture(series, scale, width, colour));
    mark(cursor.step);
  }

  function mark(step) {
    legend.replaceChildren(...series.map((each, index) => entry(each, step, hasNames, series.length > 1, colour(index))));
    box.querySelector(".cursor")?.remove();
    if (step === null || place === null) return;
    const group = svg("g", { class: "cursor" });
    group.append(svg("line", { x1: place.x(step), x2: place.x(step), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    series.forEach((each, index) => {
      const value = at(each.points, step);
      if (value !== null) group.append(svg("circle", { cx: place.x(value[0]), cy: place.y(value[1]), r: 3.5, class: colour(index) }));
    });
    box.querySelector("svg").append(group);
  }

  box.addEventListener("pointermove", (event) => {
    if (place === null || steps.length === 0) return;
    const wanted = place.stepAt(event.clientX - box.getBoundingClientRect().left);
    cursor.move(nearest(steps, wanted));
  });
  box.addEventListener("pointerleave", () => cursor.move(null));
  figure.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || steps.length === 0) return;
    event.preventDefault();
    const here = cursor.step === null ? steps.length : steps.indexOf(nearest(steps, cursor.step));
    cursor.move(steps[Math.min(Math.max(here + move, 0), steps.length - 1)]);
  });
  figure.addEventListener("blur", () => cursor.move(null));
  new ResizeObserver(([entry]) => {
    if (!box.isConnected) cursor.listeners.delete(mark);
    else if (entry.contentRect.width > 0) draw(Math.round(entry.contentRect.width));
  }).observe(box);
  cursor.listeners.add(mark);
  mark(null);
  return figure;
}

function entry(each, step, hasName, hasKey, colour) {
  const found = step === null ? each.points.at(-1) : at(each.points, step);
  const value = h("b", {}, found ? number(found[1]) : "–");
  const when = step !== null && found && !hasKey && h("small", {}, `step ${found[0]}`);
  return h("span", { class: "entry", title: each.name }, hasKey && h("i", { class: `key ${colour}` }), hasName && each.name, when, value);
}

function picture(series, scale, width, colour) {
  const root = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
  for (const tick of scale.yTicks) {
    const y = scale.y(tick);
    root.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    root.append(svg("text", { class: "tick", x: MARGIN.left - 8, y: y + 3.5, "text-anchor": "end" }, axis(tick)));
  }
  for (const tick of scale.xTicks) {
    const x = scale.x(tick);
    const isAtEnd = x > width - 24;
    root.append(svg("text", { class: "tick", x: isAtEnd ? width - 2 : x, y: HEIGHT - 6, "text-anchor": isAtEnd ? "end" : "middle" }, axis(tick)));
  }
  series.forEach((each, index) => {
    if (each.band?.length > 1) {
      const top = each.band.map(([step, , high]) => `${scale.x(step)},${scale.y(high)}`);
      const bottom = each.band.map(([step, low]) => `${scale.x(step)},${scale.y(low)}`).reverse();
      root.append(svg("polygon", { class: `band ${colour(index)}`, points: [...top, ...bottom].join(" ") }));
    }
  });
  series.forEach((each, index) => {
    const points = each.points.map(([step, value]) => `${scale.x(step)},${scale.y(value)}`);
    root.append(svg("polyline", { class: `line ${colour(index)}`, points: points.join(" ") }));
    if (each.dots || points.length === 1) {
      for (const [step, value] of each.points) root.append(svg("circle", { class: `dot ${colour(index)}`, cx: scale.x(step), cy: scale.y(value), r: 2.5 }));
    }
  });
  return root;
}

function scales(series, steps, width) {
  const values = series.flatMap((each) => [...each.points.map(([, value]) => value), ...(each.band ?? []).flatMap(([, low, high]) => [low, high])]);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const yTicks = ticks(low, high, 4);
  [low, high] = [Math.min(low, yTicks[0]), Math.max(high, yTicks.at(-1))];
  const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 1];
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const [top, bottom] = [MARGIN.top, HEIGHT - MARGIN.bottom];
  const round = (value) => Math.round(value * 10) / 10;
  const span = Math.max(last - first, 1);
  return {
    x: (step) => round(left + ((step - first) / span) * (right - left)),
    y: (value) => round(bottom - ((value - low) / (high - low)) * (bottom - top)),
    stepAt: (x) => first + ((x - left) / (right - left)) * span,
    xTicks: ticks(first, last, Math.max(2, Math.min(6, Math.floor(width / 90)))).filter((tick) => Number.isInteger(tick) && tick >= first && tick <= last),
    yTicks,
  };
}

export function ticks(low, high, wanted) {
  const rough = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let index = Math.floor(low / size); index <= Math.ceil(high / size - 1e-9); index += 1) found.push(Number((index * size).toPrecision(12)));
  return found;
}

function nearest(steps, wanted) {
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= wanted) low = middle;
    else high = middle;
  }
  return Math.abs(steps[low] - wanted) <= Math.abs(steps[high] - wanted) ? steps[low] : steps[high];
}

function at(points, step) {
  if (points.length === 0) return null;
  const found = nearest(points.map(([each]) => each), step);
  return points.find(([each]) => each === found);
}

// A small curve without axes, for a row of a table.
export function sparkline(values, width = 96, height = 24) {
  const root = svg("svg", { class: "sparkline", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (values.length < 2) return root;
  const [steps, figures] = [values.map(([step]) => step), values.map(([, value]) => value)];
  const [first, low] = [steps[0], Math.min(...figures)];
  const [span, range] = [steps.at(-1) - first || 1, Math.max(...figures) - low || 1];
  const spot = ([step, value]) => `${(2 + ((step - first) / span) * (width - 4)).toFixed(1)},${(height - 3 - ((value - low) / range) * (height - 6)).toFixed(1)}`;
  root.append(svg("polyline", { points: values.map(spot).join(" ") }));
  return root;
}

// The series of one figure of a run: [[step, value]], without the steps that have none.
export function pointsOf(series, name) {
  const values = series?.figures?.[name] ?? [];
  const points = [];
  (series?.steps ?? []).forEach((step, index) => {
    if (values[index] !== null && values[index] !== undefined) points.push([step, values[index]]);
  });
  return points;
}

export function bandOf(series, middle, spread) {
  const [steps, means, spreads] = [series?.steps ?? [], series?.figures?.[middle] ?? [], series?.figures?.[spread] ?? []];
  return steps.flatMap((step, index) => (typeof means[index] === "number" && typeof spreads[index] === "number" ? [[step, means[index] - spreads[index], means[index] + spreads[index]]] : []));
}

// The figures of a training with their titles, in the order in which people read them.
export const FIGURES = [
  { title: "Reward", figures: { rewardMean: "mean" }, spread: "rewardStd" },
  { title: "Correct", unit: "%", figures: { percentCorrect: "correct" } },
  { title: "Loss", figures: { loss: "loss" } },
  { title: "World model (ECHO)", unit: "loss", figures: { worldModelLoss: "loss" } },
  { title: "KL divergence", figures: { kl: "KL" } },
  { title: "Entropy", figures: { entropy: "entropy" } },
  { title: "Gradient norm", figures: { gradientNorm: "norm" } },
  { title: "Learning rate", figures: { learningRate: "rate" } },
  { title: "Length of answers", unit: "tokens", figures: { completionsMeanLength: "mean" } },
  { title: "Truncated answers", unit: "share", figures: { completionsTruncated: "share" } },
  { title: "Tool calls", unit: "per rollout", figures: { toolsCallsPerRollout: "calls" } },
  { title: "Staleness", unit: "steps", figures: { stalenessMean: "mean" } },
  { title: "Tokens trained", unit: "per second", figures: { tokensPerSecond: "tokens" } },
  { title: "Time of a step", unit: "s", figures: { secondsPerStep: "all", secondsTraining: "training", secondsWaiting: "waiting" } },
];
