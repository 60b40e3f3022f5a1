// The timeline: how many hits there are in each pixel, or every hit and call when there are few.

const LANES_SHOWN = 64;
const LANE = 42;
const AXIS = 22;
const MOST_TICKS = 200; // labels of the axis
const MOST = 20000; // hits that are drawn one by one
const CALL = 13; // the height of a call
const STYLES = ["ink", "dim", "line", "soft", "paper", "accent", "wash", "bad", "sans", "mono"].concat(
  Array.from({ length: MARKS }, (_, mark) => `mark${mark}`),
);

function Timeline(model) {
  const { hits, meta } = model;
  const canvas = $("lanes");
  const overview = $("overview");
  const full = [model.first, model.last];
  let view = [...full];
  let by = "vcpu";
  let lanes = [];
  let laneOf = null;
  const colours = {};
  let anchor = null; // where a drag began
  let drawn = []; // what single hits are where: {x, w, y, h, hit}
  let queued = false;

  const gutter = () => (canvas.clientWidth < 600 ? 88 : 148);
  const across = () => Math.max(canvas.clientWidth - gutter(), 1);
  const xOf = (time) => gutter() + ((time - view[0]) / (view[1] - view[0])) * across();
  const timeAt = (x) => view[0] + ((x - gutter()) / across()) * (view[1] - view[0]);

  /** The lanes of the hits that pass the filter, and the lane of each value of the column. */
  function group() {
    const column = hits[by];
    const counts = new Map();
    for (const i of model.filtered) counts.set(column[i], (counts.get(column[i]) ?? 0) + 1);
    // A task in an interrupt is the same task.
    const merged = new Map();
    for (const [value, n] of counts) {
      const task = by === "task" ? meta.tasks[value] : null;
      const key = task ? `${task.pid} ${task.comm}` : String(value);
      const lane = merged.get(key) ?? { values: [], n: 0, name: nameOf(value) };
      lane.values.push(value);
      lane.n += n;
      merged.set(key, lane);
    }
    const order = by === "vcpu" ? (a, b) => a.values[0] - b.values[0] : (a, b) => b.n - a.n;
    lanes = [...merged.values()].sort(order);
    if (lanes.length > LANES_SHOWN) {
      const rest = lanes.splice(LANES_SHOWN - 1);
      const n = rest.reduce((sum, lane) => sum + lane.n, 0);
      lanes.push({ name: `${count(rest.length)} others`, n, values: rest.flatMap((lane) => lane.values) });
    }
    laneOf = new Map(lanes.flatMap((lane, at) => lane.values.map((value) => [value, at])));
  }

  function nameOf(value) {
    if (by === "vcpu") return cpuName(value);
    if (by === "probe") return model.probeName(value);
    const task = meta.tasks[value];
    return task ? `${task.comm}-${task.pid}` : "unknown";
  }

  function draw() {
    queued = false;
    const style = getComputedStyle(document.documentElement);
    for (const name of STYLES) colours[name] = style.getPropertyValue(`--${name}`).trim();
    drawOverview();
    drawLanes();
  }

  function density(list, span, from, width, laneAt, rows) {
    const counts = new Uint32Array(width * rows);
    const scale = width / (span[1] - span[0]);
    const { time } = hits;
    for (let at = from; at < list.length; at++) {
      const hit = list[at];
      if (time[hit] > span[1]) break;
      const x = Math.min(width - 1, Math.floor((time[hit] - span[0]) * scale));
      counts[laneAt(hit) * width + x]++;
    }
    return counts;
  }

  function drawOverview() {
    const height = 48;
    const [g, whole] = surface(overview, height);
    const [left, width] = [gutter(), Math.max(Math.floor(across()), 1)];
    const counts = density(model.filtered, full, 0, width, () => 0, 1);
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    g.fillStyle = colours.dim;
    g.font = `12px ${colours.sans}`;
    g.fillText("All", 12, 29);
    g.fillStyle = colours.accent;
    counts.forEach((n, x) => {
      if (!n) return;
      const h = Math.max(1, Math.sqrt(n / most) * (height - 12));
      g.fillRect(left + x, height - 4 - h, 1, h);
    });
    const at = (time) => left + ((time - full[0]) / (full[1] - full[0])) * across();
    g.globalAlpha = 0.75;
    g.fillStyle = colours.paper;
    g.fillRect(left, 0, at(view[0]) - left, height);
    g.fillRect(at(view[1]), 0, whole - at(view[1]), height);
    g.globalAlpha = 1;
    if (view[0] > full[0] || view[1] < full[1]) {
      g.strokeStyle = colours.accent;
      g.strokeRect(at(view[0]) + 0.5, 0.5, Math.max(at(view[1]) - at(view[0]) - 1, 2), height - 1);
    }
    if (model.range) {
      g.fillStyle = colours.ink;
      g.fillRect(at(model.range[0]), height - 3, Math.max(at(model.range[1]) - at(model.range[0]), 2), 3);
    }
  }

  function drawAxis(g, width, height) {
    const step = niceStep(view[1] - view[0], across() / 110);
    const digits = Math.min(9, Math.max(0, 9 - Math.floor(Math.log10(step) + 1e-9)));
    g.font = `11px ${colours.sans}`;
    const first = Math.ceil((view[0] + model.shift) / step);
    // By number: a large time stays as it is when a small step is added.
    for (let tick = 0; tick < MOST_TICKS; tick++) {
      const t = (first + tick) * step;
      if (!(t <= view[1] + model.shift)) break;
      const x = Math.round(xOf(t - model.shift)) + 0.5;
      g.strokeStyle = colours.soft;
      g.beginPath();
      g.moveTo(x, AXIS);
      g.lineTo(x, height);
      g.stroke();
      const label = `${seconds(t, digits)} s`;
      g.fillStyle = colours.dim;
      g.fillText(label, Math.min(x + 4, width - g.measureText(label).width - 4), 15);
    }
  }

  function drawLanes() {
    const height = AXIS + Math.max(lanes.length, 1) * LANE;
    const [g, width] = surface(canvas, height);
    drawAxis(g, width, height);
    if (model.range) {
      const [a, b] = model.range.map(xOf);
      g.fillStyle = colours.wash;
      g.fillRect(Math.max(a, gutter()), AXIS, Math.min(b, width) - Math.max(a, gutter()), height);
    }
    const list = model.filtered;
    const from = lowerBound(list, hits.time, view[0]);
    const to = lowerBound(list, hits.time, view[1] + 1e-3);
    drawn = [];
    g.save();
    g.beginPath();
    g.rect(gutter(), AXIS, across(), height);
    g.clip();
    const isSingle = to - from <= (across() / 3) * Math.min(lanes.length, 4);
    if (isSingle) drawSingle(g, list, from);
    else drawDensity(g, list, from);
    drawFound(g, list, from);
    if (model.range) {
      g.fillStyle = colours.accent;
      for (const time of model.range) g.fillRect(Math.round(xOf(time)) - 0.5, AXIS, 1, height);
    }
    if (model.picked !== null) {
      g.fillStyle = colours.ink;
      g.fillRect(Math.round(xOf(hits.time[model.picked])) - 1, AXIS, 1.5, height);
    }
    g.restore();
    drawLabels(g, width);
    document.querySelector('[data-view="selection"]').disabled = !model.range;
    const kind = isSingle ? `each ${model.noun}` : `${model.noun}s a pixel, heights by square root`;
    $("timeline-hint").textContent = `${plural(to - from, model.noun)} in ${duration(view[1] - view[0])} · ${kind}`;
  }

  function drawLabels(g, width) {
    const left = gutter();
    lanes.forEach((lane, at) => {
      const y = AXIS + at * LANE;
      g.fillStyle = colours.line;
      g.fillRect(0, y, width, 1);
      g.fillStyle = colours.ink;
      g.font = `12px ${colours.mono}`;
      g.fillText(fitted(g, lane.name, left - 20), 12, y + 18);
      g.fillStyle = colours.dim;
      g.font = `11px ${colours.sans}`;
      g.fillText(count(lane.n), 12, y + 33);
    });
  }

  function drawDensity(g, list, from) {
    const width = Math.max(Math.floor(across()), 1);
    const column = hits[by];
    const counts = density(list, view, from, width, (hit) => laneOf.get(column[hit]), lanes.length);
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    g.fillStyle = colours.accent;
    lanes.forEach((_, lane) => {
      const bottom = AXIS + (lane + 1) * LANE - 3;
      for (let x = 0; x < width; x++) {
        const n = counts[lane * width + x];
        if (!n) continue;
        const h = Math.max(1.5, Math.sqrt(n / most) * (LANE - 9));
        g.fillRect(gutter() + x, bottom - h, 1, h);
      }
    });
  }

  /** What is no hit, as lines with a head that are seen among any number of hits. */
  function drawFound(g, list, from) {
    const column = hits[by];
    for (let at = from; at < list.length && drawn.length < 2 * MOST; at++) {
      const hit = list[at];
      if (hits.time[hit] > view[1]) break;
      if (hits.kind[hit] < FOUND) continue;
      const [x, top] = [xOf(hits.time[hit]), AXIS + laneOf.get(column[hit]) * LANE + 3];
      g.fillStyle = hits.kind[hit] === DROPPED ? colours.ink : colours.bad;
      g.fillRect(x - 1, top, 2, LANE - 6);
      g.beginPath();
      g.arc(x, top + 4, 4, 0, 2 * Math.PI);
      g.fill();
      drawn.push({ x: x - 4, w: 8, y: top, h: LANE - 6, hit });
    }
  }

  /** Calls as bars from their beginning, those in others below them, and other hits as ticks. */
  function drawSingle(g, list, from) {
    const column = hits[by];
    const inView = [];
    for (let at = from; at < list.length; at++) {
      const hit = list[at];
      const begin = hits.time[hit] - (hits.took[hit] || 0);
      if (begin <= view[1]) inView.push({ hit, begin, end: hits.time[hit] });
      if (inView.length === MOST) break;
    }
    inView.sort((a, b) => a.begin - b.begin || b.end - a.end);
    const open = lanes.map(() => []);
    const lastLabel = lanes.map(() => -Infinity);
    g.font = `10px ${colours.mono}`;
    g.textBaseline = "middle";
    for (const { hit, begin, end } of inView) {
      const lane = laneOf.get(column[hit]);
      const top = AXIS + lane * LANE + 3;
      const x = xOf(begin);
      const name = model.probeName(hits.probe[hit]);
      g.fillStyle = colours[`mark${hits.probe[hit] % MARKS}`];
      if (hits.kind[hit] === 1) {
        const ends = open[lane];
        let depth = ends.findIndex((until) => until <= begin);
        if (depth < 0) depth = ends.length;
        depth = Math.min(depth, 2);
        ends[depth] = end;
        const w = Math.max(xOf(end) - x, 2);
        const y = top + depth * CALL;
        g.fillRect(x, y, w, CALL - 2);
        drawn.push({ x, w, y, h: CALL - 2, hit });
        const left = Math.max(x, gutter());
        const space = Math.min(x + w, canvas.clientWidth) - left - 8;
        if (space > 24) {
          g.fillStyle = colours.paper;
          g.fillText(fitted(g, name, space), left + 4, y + CALL / 2 - 0.5);
        }
      } else {
        g.fillRect(x - 1, top, 2, LANE - 6);
        drawn.push({ x: x - 3, w: 6, y: top, h: LANE - 6, hit });
        if (x - lastLabel[lane] > 4 && nextTick(inView, lane, column, begin) - x > 40) {
          const label = fitted(g, name, nextTick(inView, lane, column, begin) - x - 10);
          g.fillText(label, x + 4, top + (LANE - 6) / 2);
        }
        lastLabel[lane] = x;
      }
    }
    g.textBaseline = "alphabetic";
  }

  /** Where the next hit of the lane is drawn. */
  function nextTick(inView, lane, column, time) {
    let [low, high] = [0, inView.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (inView[middle].begin <= time) low = middle + 1;
      else high = middle;
    }
    for (let at = low; at < Math.min(low + 50, inView.length); at++) {
      if (laneOf.get(column[inView[at].hit]) === lane) return xOf(inView[at].begin);
    }
    return low + 50 < inView.length ? -Infinity : canvas.clientWidth;
  }

  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(draw);
  }

  function look(from, to) {
    // Where times are large, not all numbers of nanoseconds are told apart.
    const least = Math.max(50, full[1] * 2 ** -50);
    const span = Math.min(Math.max(to - from, least), full[1] - full[0]);
    const start = Math.min(Math.max(from, full[0]), full[1] - span);
    view = [start, start + span];
    redraw();
  }

  function zoom(factor, at = (view[0] + view[1]) / 2) {
    look(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }

  const pan = (share) => look(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));

  const actions = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    all: () => look(...full),
    selection() {
      if (!model.range) return;
      const margin = 0.02 * (model.range[1] - model.range[0]);
      look(model.range[0] - margin, model.range[1] + margin);
    },
  };

  /** Moves the end of the selection, which begins in the middle of the view. */
  function extend(share) {
    const step = share * (view[1] - view[0]);
    const middle = (view[0] + view[1]) / 2;
    const [from, to] = model.range ?? [middle, middle];
    if (from === to && step < 0) model.setRange([from + step, to]);
    else model.setRange([from, Math.min(Math.max(to + step, from), full[1])]);
  }

  function find(x, y) {
    const inside = drawn.filter((mark) => x >= mark.x - 1 && x <= mark.x + mark.w + 1 && y >= mark.y && y <= mark.y + mark.h);
    return inside.at(-1)?.hit ?? null;
  }

  function showTip(event) {
    const tip = $("tip");
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = lanes[Math.floor((y - AXIS) / LANE)];
    tip.hidden = !lane || x < gutter();
    canvas.style.cursor = "";
    if (tip.hidden) return;
    const hit = find(x, y);
    if (hit !== null) {
      canvas.style.cursor = "pointer";
      const took = hits.kind[hit] === 1 ? ` · took ${duration(hits.took[hit])}` : "";
      tip.replaceChildren(
        make("b", {}, model.probeName(hits.probe[hit])),
        `${momentOf(model, hit)} s · ${cpuName(hits.vcpu[hit])} · ${model.taskName(hits.task[hit])}${took}`,
        make("div", { class: "mono" }, textOf(hits, hit).slice(0, 200)),
      );
    } else {
      tip.replaceChildren(make("b", {}, lane.name), `${seconds(timeAt(x) + model.shift, 6)} s`);
    }
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  }

  function clicked(x, y) {
    const hit = find(x, y);
    if (hit === null) model.setRange(null);
    else model.pick(hit);
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.offsetX < gutter()) return;
    anchor = { x: event.offsetX, y: event.offsetY, time: timeAt(event.offsetX), moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!anchor) return showTip(event);
    $("tip").hidden = true;
    anchor.moved ||= Math.abs(event.offsetX - anchor.x) > 4;
    if (!anchor.moved) return;
    const now = Math.min(Math.max(timeAt(event.offsetX), view[0]), view[1]);
    model.setRange([Math.min(anchor.time, now), Math.max(anchor.time, now)]);
  });
  canvas.addEventListener("pointerup", () => {
    if (anchor && !anchor.moved) clicked(anchor.x, anchor.y);
    anchor = null;
  });
  canvas.addEventListener("pointercancel", () => (anchor = null));
  canvas.addEventListener("pointerleave", () => ($("tip").hidden = true));
  canvas.addEventListener("dblclick", () => (model.range ? actions.selection() : zoom(0.5)));
  canvas.addEventListener(
    "wheel",
    (event) => {
      const box = canvas.getBoundingClientRect();
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(2 ** (event.deltaY / 200), timeAt(event.clientX - box.left));
      else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) pan(sideways / 1000);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way) event.shiftKey ? extend(0.05 * way) : pan(0.1 * way);
    else if (event.key === "+" || event.key === "=") actions.in();
    else if (event.key === "-") actions.out();
    else if (event.key === "0" || event.key === "Home") actions.all();
    else if (event.key === "Enter") actions.selection();
    else if (event.key === "Escape") model.setRange(null);
    else return;
    event.preventDefault();
  });

  // The overview moves the view.
  let isHeld = false;
  const center = (event) => {
    const at = full[0] + ((event.offsetX - gutter()) / across()) * (full[1] - full[0]);
    const half = (view[1] - view[0]) / 2;
    look(at - half, at + half);
  };
  overview.addEventListener("pointerdown", (event) => {
    isHeld = true;
    overview.setPointerCapture(event.pointerId);
    center(event);
  });
  overview.addEventListener("pointermove", (event) => isHeld && center(event));
  overview.addEventListener("pointerup", () => (isHeld = false));
  overview.addEventListener("pointercancel", () => (isHeld = false));

  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => actions[button.dataset.view]());
  }
  const choices = document.querySelectorAll("[data-lanes]");
  for (const button of choices) {
    button.addEventListener("click", () => {
      by = button.dataset.lanes;
      choices.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      group();
      redraw();
    });
  }
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  model.onChange((what) => {
    if (what === "filter") group();
    if (what === "picked" && model.picked !== null) {
      const time = hits.time[model.picked];
      if (time < view[0] || time > view[1]) look(time - (view[1] - view[0]) / 2, time + (view[1] - view[0]) / 2);
    }
    redraw();
  });
  group();
  redraw();
}
