// Makes elements, and formats numbers. Text from runs enters only as text nodes, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "g", "rect", "line", "text", "circle", "polyline", "title", "defs", "marker", "tspan"]);

/** An element: h("td", {class: "n", onclick: f}, "text", child, null). */
export function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([k, v]) => element.style.setProperty(k, v));
    else if (name === "value" || name === "checked" || name === "selected" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

/** Four significant digits, without noise. */
export function short(v) {
  if (!isNumber(v)) return "–";
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a >= 1e6) return compact(v);
  if (a < 1e-3) return v.toExponential(2);
  const digits = Math.max(0, 3 - Math.floor(Math.log10(a)));
  return v.toLocaleString("en", { maximumFractionDigits: digits });
}

/** A number for an axis: 250k, 1.5M. */
export function compact(v, digits = 4) {
  if (!isNumber(v)) return "";
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(v) >= size) return `${Number((v / size).toPrecision(digits))}${letter}`;
  }
  return String(Number(v.toPrecision(digits)));
}

/** Numbers along an axis, with as many digits as tell them apart. */
export function labels(ticks) {
  const known = ticks.filter(isNumber), num = new Set(known).size;
  let digits = 4;
  while (digits < 15 && new Set(known.map((v) => compact(v, digits))).size < num) digits += 1;
  return ticks.map((v) => compact(v, digits));
}

/** At most so many letters: names that begin alike differ at their ends, so the cut is in the middle. */
export function middle(text, most = 48) {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(-tail)}`;
}

/** A span of time. */
export function seconds(v) {
  if (!isNumber(v)) return "–";
  if (v < 10) return `${Number(v.toPrecision(2))} s`;
  const s = Math.round(v);
  if (s < 60) return `${s} s`;
  const two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const whole = (v) => (isNumber(v) ? Math.round(v).toLocaleString("en") : "–");
export const counted = (v, word) => `${whole(v)} ${word}${v === 1 ? "" : "s"}`;
export const percent = (v) => (isNumber(v) ? `${Math.round(100 * v)} %` : "–");

/** A file size. */
export function bytes(v) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (v >= size) return `${(v / size).toFixed(1)} ${unit}`;
  return `${v} B`;
}

/** Any setting as text. */
export function value(v) {
  if (v === undefined) return "–";
  if (v === null) return "none";
  if (typeof v === "boolean") return v ? "yes" : "no";
  if (typeof v === "number") return Number.isInteger(v) ? String(v) : String(Number(v.toPrecision(6)));
  if (Array.isArray(v)) return v.length ? v.map(value).join(", ") : "none";
  if (typeof v === "object") return JSON.stringify(v);
  return String(v);
}

/** A curve of a few numbers in a line of text; `range` is what its foot and its top stand for. */
export function sparkline(values, [low, high] = [Math.min(...(values ?? [])), Math.max(...(values ?? []))], width = 84, height = 22) {
  if (!values || values.length < 2) return h("svg", { class: "spark", width, height, "aria-hidden": "true" });
  const span = high - low || 1;
  const points = values.map((v, i) => `${(1 + (i * (width - 2)) / (values.length - 1)).toFixed(1)},${(height - 2 - ((v - low) * (height - 4)) / span).toFixed(1)}`);
  return h("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `from ${short(values[0])} to ${short(values.at(-1))}` }, h("polyline", { points: points.join(" ") }));
}

/** A row of buttons of which one is pressed. */
export function choice(name, options, current, onpick) {
  return h("span", { class: "choice", role: "group", "aria-label": name }, options.map(([key, label]) =>
    h("button", { type: "button", "aria-pressed": String(key === current), onclick: () => onpick(key) }, label)));
}

export const pill = (status) => h("span", { class: `pill ${status}` }, status);

/** Sentences in a coloured box. */
export const notice = (lines, kind = "warn") => (lines.length ? h("div", { class: `notice ${kind}`, role: "alert" }, lines.map((l) => h("p", {}, l))) : null);

export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Colours of runs and stages: names of the style sheet's, so that they follow the theme. */
export const color = (i) => `var(--c${((i % 10) + 10) % 10})`;

/** Such a colour as a canvas takes it, in the theme of now. */
export const paint = (name) => token(name.slice("var(".length, -1)) || "#888";

/** There are ten colours: the next ten lines are dashed, the others dotted. */
export const dash = (i) => (i < 10 ? undefined : i < 20 ? [8, 4] : [2, 4]);
