// Requests to the server, and its stream that says which runs have changed.

export class Refused extends Error {}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Refused("the board does not respond; is `runnel board` still running?");
  }
  const data = (response.headers.get("content-type") ?? "").includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Refused(data.error ?? `the board responded with ${response.status}`);
  return data;
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(query)}`);

export const post = (path, data, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(data), signal });

const listeners = new Set();
export const on = (f) => { listeners.add(f); return () => listeners.delete(f); };

/** Follow the server while the page is visible: a browser allows a site few connections over all its tabs. `state` is called with "live" or "lost". */
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

/** Call `f` at most once in `wait` milliseconds; a call in between is made at the end. */
export function paced(f, wait = 800) {
  let timer = null, again = false;
  return () => {
    if (timer) { again = true; return; }
    f();
    timer = setTimeout(() => { timer = null; if (again) { again = false; f(); } }, wait);
  };
}

/** What the user chose, stored for the next visit. */
export const kept = {
  get(name, otherwise) { try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; } },
  set(name, v) { try { localStorage.setItem(name, JSON.stringify(v)); } catch { /* no storage: for this visit only */ } },
};
