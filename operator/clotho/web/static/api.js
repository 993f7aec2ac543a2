// Talks to the server: the token of each request, JSON once, and state that follows by server-sent events.

const TOKEN = "clotho-token";
const NAMESPACES = "clotho-namespaces";
const RETRY_MS = [500, 1000, 2000, 5000, 10000];

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A cluster's token stays in this tab; the key of `clotho ui` is good for all tabs, and ends with that process.
let storage = sessionStorage;
export const keepForAllTabs = () => { storage = localStorage; };
export const hasToken = () => Boolean(storage.getItem(TOKEN));
export const setToken = (token) => storage.setItem(TOKEN, token);
export const forgetToken = () => {
  storage.removeItem(TOKEN);
  sessionStorage.removeItem(NAMESPACES);
};

// Whoever may not list all namespaces names theirs once, in the address of a page; the other pages of the tab follow.
export function inNamespaces(path, query) {
  if (query.has("namespaces")) sessionStorage.setItem(NAMESPACES, query.get("namespaces"));
  const named = sessionStorage.getItem(NAMESPACES);
  return named ? `${path}?${new URLSearchParams({ namespaces: named })}` : path;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (hasToken()) headers.Authorization = `Bearer ${storage.getItem(TOKEN)}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, body.problem ?? `The server answers ${answer.status}.`);
  }
  return answer;
}

export const getJson = async (path) => (await ask(path)).json();
export const postJson = async (path, body) => (await ask(path, { method: "POST", body: JSON.stringify(body) })).json();

// Calls `change(parts, changedKeys)` with the whole state after each event; a hidden tab does not follow.
export function follow(path, change, report) {
  let parts = {};
  let attempt = 0;
  let current = null;
  let isClosed = false;

  async function run() {
    while (!isClosed && !document.hidden) {
      current = new AbortController();
      try {
        const answer = await ask(path, { headers: { Accept: "text/event-stream" }, signal: current.signal });
        report("live");
        let isFirst = true;
        for await (const message of messages(answer.body)) {
          attempt = 0;
          const known = isFirst ? Object.keys(parts) : message.gone;
          parts = isFirst ? message.parts : { ...without(parts, message.gone), ...message.parts };
          isFirst = false;
          if (!isClosed) change(parts, new Set([...Object.keys(message.parts), ...known]));
        }
      } catch (error) {
        if (isClosed || document.hidden) return;
        if (error instanceof Refused) {
          report("refused", error);
          if (error.status < 500) return;
        }
      }
      if (isClosed || document.hidden) return;
      report("waiting");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(attempt++, RETRY_MS.length - 1)]));
    }
  }

  const visibility = () => (document.hidden ? current?.abort() : run());
  document.addEventListener("visibilitychange", visibility);
  run();
  return () => {
    isClosed = true;
    document.removeEventListener("visibilitychange", visibility);
    current?.abort();
  };
}

function without(parts, keys) {
  const rest = { ...parts };
  for (const key of keys) delete rest[key];
  return rest;
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
  }
}
