// Durations of returns, and what the run itself has counted.

/** The durations of the hits `list` by probe, sorted. */
function durationsOf(hits, list) {
  const sizes = new Map();
  for (const hit of list) if (hits.kind[hit] === 1) sizes.set(hits.probe[hit], (sizes.get(hits.probe[hit]) ?? 0) + 1);
  const all = new Map([...sizes].map(([probe, n]) => [probe, { n: 0, took: new Float64Array(n) }]));
  for (const hit of list) {
    if (hits.kind[hit] !== 1) continue;
    const own = all.get(hits.probe[hit]);
    own.took[own.n++] = hits.took[hit];
  }
  return new Map([...all].sort((a, b) => b[1].n - a[1].n).map(([probe, { took }]) => [probe, took.sort()]));
}

const CARDS = 24;

function Durations(model) {
  const hasReturns = model.hits.kind.includes(1);
  $("durations").hidden = !hasReturns;
  if (!hasReturns) return;
  const draw = () => {
    const all = [...durationsOf(model.hits, model.shown)];
    const cards = all.slice(0, CARDS).map(([probe, took]) => durationCard(model.probeName(probe), probe, took));
    if (all.length > CARDS) cards.push(make("p", { class: "hint" }, `${plural(all.length - CARDS, "more probe")}: filter by one to see it.`));
    if (!all.length) cards.push(make("p", { class: "hint" }, "No return passes the filter."));
    $("duration-cards").replaceChildren(...cards);
  };
  whenQuiet(model, draw);
}

function durationCard(name, probe, took) {
  const buckets = [];
  for (const ns of took) buckets[log2(ns)] = (buckets[log2(ns)] ?? 0) + 1;
  const first = log2(took[0]);
  const rows = [];
  const most = Math.max(...buckets.filter((n) => n));
  for (let power = first; power < buckets.length; power++) rows.push(bucketRow(`≥ ${duration(power ? 2 ** power : 0)}`, buckets[power] ?? 0, most));
  const shares = [["p50", 0.5], ["p90", 0.9], ["p99", 0.99]].map(([word, share]) => `${word} ${duration(percentile(took, share))}`);
  const words = [plural(took.length, "return"), ...shares, `max ${duration(took.at(-1))}`].join(" · ");
  return make("div", { class: "card" }, make("h3", {}, swatch(probe), name), make("p", { class: "hint" }, words), ...rows);
}

/** Draws now, and when the model has not changed for a moment. */
function whenQuiet(model, draw) {
  let timer = 0;
  model.onChange((what) => {
    if (what === "picked") return;
    clearTimeout(timer);
    timer = setTimeout(draw, 120);
  });
  draw();
}

const ENTRIES = 500;
const KEYS = 32; // columns of a histogram

/** The histograms that the run has made (`hist:keys=..`). */
function Histograms({ meta }) {
  $("histograms").hidden = !meta.histograms.length;
  $("histogram-cards").replaceChildren(...meta.histograms.map(histogramCard));
}

function histogramCard({ name, definition, hits, dropped, rows, left_out }) {
  const keys = Object.keys(rows[0]?.keys ?? {}).slice(0, KEYS);
  const values = Object.keys(rows[0]?.values ?? {}).slice(0, KEYS);
  const most = Math.max(1, ...rows.map((row) => row.hitcount));
  const heading = (words, isNumber) => make("th", { class: isNumber ? "num" : "", scope: "col" }, words);
  const table = make("table", {}, make("tr", {}, ...keys.map((key) => heading(key)), heading("hits", true), heading(""), ...values.map((value) => heading(value, true))));
  for (const row of rows.slice(0, ENTRIES)) {
    const bar = make("i");
    bar.style.width = `${(100 * row.hitcount) / most}%`;
    table.append(
      make(
        "tr",
        {},
        ...keys.map((key) => make("td", { class: "wrap" }, wordOf(row.keys[key]))),
        make("td", { class: "num" }, count(row.hitcount)),
        make("td", { class: "share" }, make("span", { class: "track" }, bar)),
        ...values.map((value) => make("td", { class: "num" }, wordOf(row.values[value]))),
      ),
    );
  }
  const more = Math.max(rows.length - ENTRIES, 0) + left_out;
  const words = [plural(hits, "hit"), dropped ? `${count(dropped)} dropped` : "none dropped", more ? `${count(more)} more entries are not shown` : null];
  return make(
    "div",
    { class: "card" },
    make("h3", {}, name),
    make("p", { class: "hint" }, [definition, ...words].filter(Boolean).join(" · ")),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, table),
  );
}

/** A key or value as text: numbers and texts as they are. */
const wordOf = (value) => (typeof value === "number" ? count(value) : typeof value === "string" ? value : JSON.stringify(value));
