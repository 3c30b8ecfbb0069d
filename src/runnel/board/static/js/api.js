// The server: questions, and word of what has changed.

export class Refused extends Error {}

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Refused("the board does not answer; is `runnel board` still running?");
  }
  const data = (answer.headers.get("content-type") ?? "").includes("json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Refused(data.error ?? `the board answered ${answer.status}`);
  return data;
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(query)}`);

export const post = (path, data, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(data), signal });

const listeners = new Set();
export const on = (f) => { listeners.add(f); return () => listeners.delete(f); };

/** Follow the server while the page is seen (a browser allows a site few connections, over all tabs); `state` hears "live" and "lost". */
export function follow(state) {
  let source = null;
  const open = () => {
    source = new EventSource("/api/live");
    source.onopen = () => { state("live"); listeners.forEach((f) => f(null, "")); };
    source.onerror = () => state("lost");
    source.onmessage = (message) => {
      const told = JSON.parse(message.data);
      listeners.forEach((f) => f(new Set(told.changed), told.problem));
    };
  };
  document.addEventListener("visibilitychange", () => {
    source?.close();
    if (document.visibilityState === "visible") open();
  });
  open();
}

/** At most one call in `wait` milliseconds, the last one kept. */
export function paced(f, wait = 800) {
  let timer = null, again = false;
  return () => {
    if (timer) { again = true; return; }
    f();
    timer = setTimeout(() => { timer = null; if (again) { again = false; f(); } }, wait);
  };
}

/** What a person chose, kept for the next visit. */
export const kept = {
  get(name, otherwise) { try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; } },
  set(name, v) { try { localStorage.setItem(name, JSON.stringify(v)); } catch { /* no storage: for this visit only */ } },
};
