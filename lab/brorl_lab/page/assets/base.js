"use strict";
// Load data, keep text as text, and build small elements. Every string that becomes a child of an element goes through
// `shown`, because model output is hostile.

const MODE = document.querySelector("meta[name=brorl-mode]").content; // report: data in the file; watch: data requested from the server
const MAX_SHOWN = 40000; // characters of one text
const TOKEN = new URLSearchParams(location.search).get("token") || "";

// Control characters, direction marks and zero-width characters are shown by their names. Line feed and tab act.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}|\p{Co}/gu;

const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

function nameOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return CONTROLS[code];
  return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
}

// Return a text as nodes: invisible characters are named, and nothing in the text acts.
function shown(text) {
  const fragment = document.createDocumentFragment();
  const bounded = text.length > MAX_SHOWN ? text.slice(0, MAX_SHOWN) : text;
  let last = 0;
  for (const found of bounded.matchAll(UNSEEN)) {
    if (found.index > last) fragment.append(bounded.slice(last, found.index));
    const mark = document.createElement("span");
    mark.className = "ctl";
    mark.textContent = nameOf(found[0]);
    fragment.append(mark);
    last = found.index + found[0].length;
  }
  fragment.append(bounded.slice(last));
  if (bounded.length < text.length) fragment.append(` … (${count(text.length - bounded.length)} more characters)`);
  return fragment;
}

// Return a text with named invisible characters, for attributes and options, which hold no elements.
function plain(text) {
  return String(text).slice(0, 2000).replace(UNSEEN, (character) => `[${nameOf(character)}]`);
}

function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : plain(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : shown(String(child)));
  }
}

// ---------------------------------------------------------------------------------------------------------- loading

const loaded = new Map();
const whole = new Promise((done) => addEventListener("DOMContentLoaded", done)); // resolved when the whole file is read

// Return the data of a name, or null when this page does not have it.
function load(name) {
  if (!loaded.has(name)) loaded.set(name, MODE === "watch" ? ask(name) : unpack(name));
  return loaded.get(name);
}

async function ask(name) {
  const answer = await fetch(`data/${name}?token=${encodeURIComponent(TOKEN)}`);
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the server answers ${answer.status}: ${plain(await answer.text())}`);
  return answer.json();
}

// The overview precedes this program. All other data follows it.
async function unpack(name) {
  if (name !== "overview") await whole;
  const element = document.getElementById(`part:${name}`);
  if (!element) return null;
  const packed = atob(element.textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function holds(name) {
  return MODE === "watch" || document.getElementById(`part:${name}`) !== null;
}

// ---------------------------------------------------------------------------------------------------------- numbers

const has = (value) => value !== null && value !== undefined;
const count = (value) => Math.round(value).toLocaleString("en-US");
const percent = (value, digits = 1) => (has(value) ? `${(100 * value).toFixed(digits)} %` : "–");

// Return what the last digit of a curve's values is worth: their median change from step to step.
function noise(values) {
  const known = (values || []).filter(has);
  const changes = known.slice(1).map((value, index) => Math.abs(value - known[index])).sort((a, b) => a - b);
  return changes.length < 8 ? null : changes[Math.floor(changes.length / 2)];
}

// Return what the last digit of a value with a 95 % interval is worth: a tenth of its standard error.
const grainOf = (ends) => (ends && has(ends[0]) ? (ends[1] - ends[0]) / 40 : null);

// Return a number as text; where `grain` is above 0, with the digit that is worth so much as the last one.
function number(value, grain = null) {
  if (!has(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return count(value);
  if (grain > 0) {
    const decimals = -Math.floor(Math.log10(grain));
    if (decimals <= 4 || size >= 1) return value.toFixed(Math.min(4, Math.max(0, decimals)));
    if (size > 0) return value.toExponential(Math.min(6, Math.max(0, Math.floor(Math.log10(size)) + decimals)));
  }
  if (Number.isInteger(value)) return String(value);
  if (size >= 100) return value.toFixed(1);
  if (size >= 0.01) return String(Number(value.toPrecision(4)));
  return value === 0 ? "0" : value.toExponential(2);
}

const isShareUnit = (unit) => unit === "share" || unit === "probability";

function withUnit(value, unit, grain = null) {
  if (!has(value)) return "–";
  if (isShareUnit(unit)) return grain > 0 ? `${number(100 * value, 100 * grain)} %` : percent(value);
  return unit ? `${number(value, grain)} ${unit}` : number(value, grain);
}

// Return a value and its standard error with equally many digits, two of them of the error.
function withError(value, error, unit, grain = null) {
  return error > 0 ? `${withUnit(value, unit, error / 10)} ± ${withUnit(error, unit, error / 10)}` : withUnit(value, unit, grain);
}

function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// ---------------------------------------------------------------------------------------------------------- tables

// columns: {title, text: left-aligned or not}; rows: cells, each a string or a node.
function table(caption, columns, rows) {
  const head = columns.map((column) => h("th", { scope: "col", class: column.text ? "text" : null }, column.title));
  const body = rows.map((cells) => tableRow(columns, cells));
  return h("table", { "aria-label": caption }, h("thead", null, h("tr", null, head)), h("tbody", null, body));
}

function tableRow(columns, cells, properties) {
  return h("tr", properties, cells.map((cell, index) => h("td", { class: columns[index].text ? "text" : null }, cell)));
}

function scrolled(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

let fields = 0;

function field(label, control) {
  control.id = control.id || `field-${++fields}`;
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control);
}

function checkBox(label, isChecked, onchange) {
  const box = h("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  box.checked = isChecked;
  return h("label", { class: "check" }, box, label);
}

function choice(options, chosen, onchange) {
  const items = options.map(([value, text]) => h("option", { value }, plain(text)));
  const element = h("select", { onchange: () => onchange(element.value) }, items);
  element.value = String(chosen);
  return element;
}
