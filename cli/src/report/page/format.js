// How things are written and made. Everything that the guest said goes through `textContent`.

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; texts are texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

const count = (n) => n.toLocaleString("en-US");
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** What CPU has done something, if one has. */
const cpuName = (vcpu) => (vcpu === NO_CPU ? "no CPU" : `cpu${vcpu}`);

/** A duration in nanoseconds with three digits that say something. */
function duration(ns) {
  const [unit, name] = ns < 1e3 ? [1, "ns"] : ns < 1e6 ? [1e3, "µs"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const value = ns / unit;
  const digits = unit === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${name}`;
}

/** Nanoseconds as seconds, with `digits` behind the point. */
const seconds = (ns, digits = 9) => (ns / 1e9).toFixed(digits);

/** The value below which `share` of the sorted values are. */
function percentile(sorted, share) {
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** The power of two that a duration is not below. */
function log2(ns) {
  const high = Math.floor(ns / 2 ** 32);
  return high ? 63 - Math.clz32(high) : ns ? 31 - Math.clz32(ns) : 0;
}

/** How many colours there are for probes, whose names tell them apart as well. */
const MARKS = 8;

/** A small square in the colour of a probe. */
function swatch(probe) {
  const square = make("span", { class: "swatch", "aria-hidden": "true" });
  square.style.background = `var(--mark${probe % MARKS})`;
  return square;
}

/** A row of a histogram: what is counted, a bar and the number. */
function bucketRow(label, value, most) {
  const bar = make("i");
  bar.style.width = `${(100 * value) / Math.max(most, 1)}%`;
  return make("div", { class: "bucket" }, make("span", {}, label), make("span", { class: "track" }, bar), make("span", {}, count(value)));
}
