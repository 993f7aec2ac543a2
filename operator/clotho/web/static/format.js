// Numbers, times and phases as people read them.

// Three digits that count; a figure of an axis is written as short as it can be.
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size >= 0.001 ? value.toPrecision(size >= 100 ? 4 : 3) : value.toExponential(1);
}

export function tick(value) {
  const size = Math.abs(value);
  return value !== 0 && size < 0.001 ? value.toExponential() : value.toLocaleString("en", { maximumFractionDigits: 6 });
}

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export function duration(seconds) {
  const all = Math.max(0, Math.round(seconds));
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min`;
  if (all < 172800) return `${Math.floor(all / 3600)} h ${String(Math.floor((all % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(all / 86400)} days`;
}

export const secondsSince = (time) => (Date.now() - Date.parse(time)) / 1000;

export function age(time) {
  if (!time) return "–";
  const seconds = Math.max(0, secondsSince(time));
  return seconds < 5 ? "now" : duration(seconds);
}

export function moment(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "–";
  const isToday = date.toDateString() === new Date().toDateString();
  const clock = date.toLocaleTimeString("en-GB");
  return isToday ? clock : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock}`;
}

// The operator writes the time left now and then; in between it is counted down here.
export function timeLeft(run) {
  if (!run.secondsLeft || run.stalled || isOver(run.phase)) return "";
  const passed = run.progressTime ? Math.max(0, secondsSince(run.progressTime)) : 0;
  const left = run.secondsLeft - passed;
  return left > 0 ? `${duration(left)} left` : "nearly done";
}

const OVER = new Set(["Completed", "Failed", "Stopped"]);
export const isOver = (phase) => OVER.has(phase);

// What a phase means for a reader; colours follow from it.
export function tone(run) {
  if (run.stalled && !isOver(run.phase)) return "warning";
  return {
    Completed: "good", Failed: "bad", Running: "active", Starting: "active", Stopping: "active",
  }[run.phase] ?? "resting";
}

export const phaseTitle = (run) => {
  if (run.isQueued && !isOver(run.phase)) return "Queued";
  return run.stalled && !isOver(run.phase) ? "Stalled" : run.phase;
};

export function shortValue(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
