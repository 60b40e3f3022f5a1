// The table of hits, of which only the rows in sight exist, and the details of one.

const HEADINGS = [["time", "Time, s"], ["cpu", "CPU"], ["task", "Task"], ["probe", "Probe"], ["values", "Values"], ["took", "Took"]];
const TALLEST = 12e6; // browsers lay out no more pixels than some millions

/** How a row is marked that is no hit. */
const markOf = (kind) => (kind < FOUND ? "" : kind === DROPPED ? " dropped" : " found");

/** When a hit was by the guest's clock, as far as that is known. */
function momentOf(model, hit) {
  const guest = model.hits.guest[hit];
  return Number.isNaN(guest) ? `${seconds(model.hits.time[hit])} host` : seconds(guest);
}

function HitTable(model) {
  const { hits } = model;
  const grid = $("table");
  const body = $("table-body");
  const head = $("table-head");
  let queued = false;

  head.append(...HEADINGS.map(([name, words]) => make("span", { class: name, role: "columnheader" }, words)));

  const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
  const inSight = () => Math.max(Math.floor((grid.clientHeight - head.offsetHeight) / rowHeight()), 1);

  /** Of many hits a pixel of the scroll bar stands for several rows. */
  const height = () => Math.min(model.shown.length * rowHeight(), TALLEST);

  const isScaled = () => model.shown.length * rowHeight() > TALLEST;
  const mostScroll = () => Math.max(height() - (grid.clientHeight - head.offsetHeight), 1);

  function firstRow() {
    if (!isScaled()) return Math.floor(grid.scrollTop / rowHeight());
    const rows = model.shown.length - inSight();
    return Math.min(Math.floor((grid.scrollTop / mostScroll()) * rows), rows);
  }

  function draw() {
    queued = false;
    const list = model.shown;
    const row = rowHeight();
    const first = firstRow();
    const last = Math.min(first + inSight() + 2, list.length);
    const offset = isScaled() ? grid.scrollTop : first * row;
    body.style.height = `${height()}px`;
    const rows = [];
    for (let at = first; at < last; at++) rows.push(rowOf(list[at], at, Math.min(offset + (at - first) * row, height() - row)));
    body.replaceChildren(...rows);
    grid.setAttribute("aria-rowcount", list.length + 1);
    $("hits-hint").textContent = list.length
      ? `${count(first + 1)} to ${count(Math.min(first + inSight(), list.length))} of ${count(list.length)}`
      : "None passes the filter.";
  }

  function rowOf(hit, at, top) {
    const guest = hits.guest[hit];
    const time = Number.isNaN(guest)
      ? make("span", { class: "time", role: "gridcell" }, seconds(hits.time[hit]), make("span", { class: "host" }, " host"))
      : make("span", { class: "time", role: "gridcell" }, seconds(guest));
    const cell = (name, ...what) => make("span", { class: name, role: "gridcell" }, ...what);
    const isReturn = hits.kind[hit] === 1;
    const element = make(
      "div",
      { class: `row${markOf(hits.kind[hit])}`, role: "row", id: `hit-${hit}`, "aria-rowindex": at + 2, "aria-selected": String(hit === model.picked), onclick: () => model.pick(hit) },
      time,
      cell("cpu", hits.vcpu[hit] === NO_CPU ? "" : String(hits.vcpu[hit])),
      cell("task", model.taskName(hits.task[hit])),
      cell("probe", swatch(hits.probe[hit]), model.probeName(hits.probe[hit])),
      cell("values", textOf(hits, hit)),
      cell("took", isReturn ? duration(hits.took[hit]) : ""),
    );
    element.style.top = `${top}px`;
    return element;
  }

  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(draw);
  }

  /** Scrolls so that row `at` is in sight. */
  function reveal(at) {
    const first = firstRow();
    const rows = inSight();
    const whole = !isScaled() && grid.scrollTop > first * rowHeight() ? 1 : 0; // the first is cut
    if (at >= first + whole && at < first + rows) return;
    body.style.height = `${height()}px`;
    if (isScaled()) {
      const top = at < first + rows ? at : at - rows + 1;
      grid.scrollTop = Math.ceil((top / Math.max(model.shown.length - rows, 1)) * mostScroll());
    } else if (at < first + rows) {
      grid.scrollTop = at * rowHeight();
    } else {
      grid.scrollTop = (at + 1) * rowHeight() - (grid.clientHeight - head.offsetHeight);
    }
  }

  grid.addEventListener("scroll", redraw);
  grid.addEventListener("keydown", (event) => {
    const list = model.shown;
    const rows = inSight();
    const now = model.picked === null ? -1 : placeOf(model.picked);
    const base = now < 0 ? firstRow() : now;
    const to = { ArrowDown: now < 0 ? base : base + 1, ArrowUp: base - 1, PageDown: base + rows, PageUp: base - rows, Home: 0, End: list.length - 1 }[event.key];
    if (event.key === "Escape") model.pick(null);
    else if (to === undefined || !list.length) return;
    else model.pick(list[Math.min(Math.max(to, 0), list.length - 1)]);
    event.preventDefault();
  });

  /** The row of a hit, or -1 where the filter hides it. */
  function placeOf(hit) {
    const list = model.shown;
    let [low, high] = [0, list.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (list[middle] < hit) low = middle + 1;
      else high = middle;
    }
    return list[low] === hit ? low : -1;
  }

  new ResizeObserver(redraw).observe(grid);
  model.onChange((what) => {
    if (what !== "picked") grid.scrollTop = 0;
    if (what === "picked" && model.picked !== null) {
      const at = placeOf(model.picked);
      if (at >= 0) reveal(at);
      grid.setAttribute("aria-activedescendant", `hit-${model.picked}`);
    }
    if (what === "picked") drawDetail(model);
    redraw();
  });
  redraw();
}

/** All that is known of the hit that was picked. */
function drawDetail(model) {
  const { hits, meta, picked } = model;
  const panel = $("detail");
  panel.hidden = picked === null;
  $("split").classList.toggle("open", picked !== null);
  if (picked === null) return;
  const facts = make("dl");
  const fact = (name, value) => facts.append(make("dt", {}, name), make("dd", {}, value));
  fact("Time", `${momentOf(model, picked)} s${Number.isNaN(hits.guest[picked]) ? ": since the guest was started" : ""}`);
  fact("Task", `${model.taskName(hits.task[picked])} on ${cpuName(hits.vcpu[picked])}`);
  if (hits.kind[picked] === 1) fact("Took", `${duration(hits.took[picked])} (${count(hits.took[picked])} ns)`);
  fact("Values", textOf(hits, picked) || "none");
  const frames = stackOf(meta, hits.node[picked]);
  const close = make("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: () => model.pick(null) }, "✕");
  panel.replaceChildren(close, make("h3", {}, swatch(hits.probe[picked]), model.probeName(hits.probe[picked])), facts);
  if (frames.length) {
    facts.append(make("dt", {}, "Stack"), make("dd", {}, make("ol", {}, ...frames.map((frame) => make("li", {}, frame)))));
  }
}

/** The frames of a stack, the innermost first. */
function stackOf(meta, node) {
  const frames = [];
  while (node !== NO_NODE) {
    frames.push(meta.frames[meta.nodes.frame[node]][1]);
    node = meta.nodes.parent[node];
  }
  return frames;
}
