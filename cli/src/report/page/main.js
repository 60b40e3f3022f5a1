// The head, the probes, the filter, and the beginning.

function drawHead({ meta, hits, first, last }) {
  const { title, end } = meta;
  $("command").textContent = title;
  document.title = `${title} · vmm`;
  const missed = meta.probes.reduce((sum, probe) => sum + (probe.missed ?? 0), 0);
  const outside = meta.probes.reduce((sum, probe) => sum + (probe.outside ?? 0), 0);
  const fact = (name, value, isBad) => {
    $("facts").append(make("div", {}, make("dt", {}, name), make("dd", { class: isBad ? "bad" : "" }, value)));
  };
  fact("Started", `${new Date(meta.started_ms).toISOString().slice(0, 19).replace("T", " ")} UTC`);
  for (const [name, value] of meta.facts) fact(name, value);
  fact("Time span", hits.n ? duration(last - first) : "none");
  fact("Hits", count(hits.n - meta.findings - meta.dropped));
  if (meta.findings) fact("Findings", `${count(meta.findings)} ⚠`, true);
  if (meta.dropped) fact("Dropped files", count(meta.dropped));
  if (outside) fact("Outside the scope", count(outside));
  fact("Missed", missed ? `${count(missed)} ⚠` : "none", missed > 0);
  fact("End", end ? end.end : "cut off ⚠", !end);
  const notes = [...meta.notes];
  if (!end) notes.unshift("The recording has no end: what came behind its last whole line is not known.");
  const unseen = meta.probes.filter((probe) => probe.missed).map((probe) => `${probe.name} missed ${count(probe.missed)}: ${probe.reasons || "no reason was recorded"}`);
  notes.push(...firstOf(unseen, unseen.length, "the table of probes has them"));
  notes.push(...firstOf(meta.splats, meta.splat_count, "the recording has them"));
  $("notes").append(...notes.map((note) => make("p", { class: "note bad" }, note)));
}

/** The first few of `all` notes, and where the others are. */
function firstOf(notes, all, where) {
  const shown = notes.slice(0, 5);
  return all > shown.length ? [...shown, `… and ${count(all - shown.length)} more; ${where}.`] : shown;
}

const PROBES = 2000;

function drawProbes(model) {
  const { meta, hits } = model;
  const took = durationsOf(hits, model.filtered);
  const has = (name) => meta.probes.some((probe) => probe[name]);
  const columns = [
    ["Probe", (probe, at) => make("button", { type: "button", onclick: () => choose(model, { probe: at }) }, swatch(at), probe.name)],
    ["Hits", (probe) => count(probe.hits), "num"],
    has("outside") && ["Outside", (probe) => count(probe.outside ?? 0), "num"],
    ["Missed", (probe) => count(probe.missed ?? 0), (probe) => (probe?.missed ? "num bad" : "num")],
    ...[["p50", 0.5], ["p90", 0.9], ["p99", 0.99]].map(
      ([word, share]) => took.size > 0 && [word, (_, at) => (took.has(at) ? duration(percentile(took.get(at), share)) : ""), "num"],
    ),
    has("address") && ["Address", (probe) => probe.address ?? ""],
    ["State", (probe) => [probe.state, probe.trapped && `on a trap: ${probe.trapped}`].filter(Boolean).join(" · "), "wrap"],
  ].filter(Boolean);
  const classOf = (column, probe) => (typeof column[2] === "function" ? column[2](probe) : (column[2] ?? ""));
  const table = $("probe-table");
  table.append(make("tr", {}, ...columns.map((column) => make("th", { scope: "col", class: classOf(column) }, column[0]))));
  const order = meta.probes.map((probe, at) => [probe, at]).sort(([a], [b]) => a.id - b.id);
  order.slice(0, PROBES).forEach(([probe, at]) => {
    table.append(make("tr", {}, ...columns.map((column) => make("td", { class: classOf(column, probe) }, column[1](probe, at)))));
  });
  const more = meta.probes.length - PROBES;
  $("probes-hint").textContent = `${count(meta.probes.length)} in all${more > 0 ? `, of which the first ${count(PROBES)} are shown` : ""}. Choose one to see its hits alone.`;
}

/** Filters, and shows in the form what is filtered by. */
function choose(model, change) {
  model.setFilter(change);
  $("filter-text").value = model.text;
  $("filter-probe").value = model.probe ?? "";
  $("filter-task").value = model.task ?? "";
}

const CHOICES = 1000;

function drawFilter(model) {
  const { meta, hits } = model;
  const options = (column, names, all) => {
    const counts = new Map();
    for (const value of column) counts.set(value, (counts.get(value) ?? 0) + 1);
    const order = [...counts].sort((a, b) => b[1] - a[1]).slice(0, CHOICES);
    return [make("option", { value: "" }, all), ...order.map(([value, n]) => make("option", { value }, `${names(value)} (${count(n)})`))];
  };
  $("filter-probe").append(...options(hits.probe, model.probeName, "All probes"));
  $("filter-task").append(...options(hits.task, model.taskName, "All tasks"));
  const number = (text) => (text === "" ? null : Number(text));
  $("filter-probe").addEventListener("change", (event) => choose(model, { probe: number(event.target.value) }));
  $("filter-task").addEventListener("change", (event) => choose(model, { task: number(event.target.value) }));
  let timer = 0;
  $("filter-text").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => model.setFilter({ text: event.target.value }), 150);
  });
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  $("filter").addEventListener("reset", (event) => {
    event.preventDefault();
    model.range = null;
    choose(model, { text: "", probe: null, task: null });
  });
  const range = $("filter-range");
  range.addEventListener("click", () => model.setRange(null));
  const say = () => {
    $("shown").textContent = model.shown.length === hits.n ? plural(hits.n, model.noun) : `${count(model.shown.length)} of ${plural(hits.n, model.noun)}`;
    range.hidden = !model.range;
    if (model.range) {
      const [from, to] = model.range.map((time) => seconds(time + model.shift, 6));
      range.textContent = `${from} – ${to} s ✕`;
      range.setAttribute("aria-label", `From ${from} to ${to} seconds: show all times`);
    }
    $("filter-clear").disabled = model.shown === model.filtered && model.filtered.length === hits.n;
  };
  model.onChange(say);
  say();
}

async function begin() {
  const status = $("status");
  const recording = await readRecording((n, all) => (status.textContent = `Reading ${count(n)} of ${plural(all, "hit")} …`));
  status.textContent = "";
  status.hidden = true;
  $("main").hidden = false;
  const model = Model(recording);
  drawHead(model);
  drawProbes(model);
  drawFilter(model);
  Timeline(model);
  HitTable(model);
  Durations(model);
  Flame(model);
  Histograms(model);
  document.documentElement.dataset.state = "ready";
}

begin().catch((error) => {
  $("status").hidden = false;
  $("status").textContent = `The recording cannot be shown: ${error.message}. A browser of 2023 or newer is needed.`;
  document.documentElement.dataset.state = "failed";
  throw error;
});
