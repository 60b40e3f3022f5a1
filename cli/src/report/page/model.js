// Which hits are shown, and who wants to know.

/** The first place in the sorted `times` of the hits `list` that is not before `time`. */
function lowerBound(list, times, time) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[list[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function Model({ meta, hits }) {
  const views = [];
  const all = Uint32Array.from({ length: hits.n }, (_, i) => i);
  const first = hits.n ? hits.time[0] : 0;
  const last = hits.n ? hits.time[hits.n - 1] : 0;
  const labelled = meta.tasks.map((task) => (task ? `${task.comm}-${task.pid}${task.context ? ` [${task.context}]` : ""}` : "unknown"));
  // Of the guest's clock, as far as it is known: it is a line over ours.
  let shift = 0;
  for (let i = hits.n - 1; i >= 0; i--) {
    if (!Number.isNaN(hits.guest[i])) {
      shift = hits.guest[i] - hits.time[i];
      break;
    }
  }
  const model = {
    meta,
    hits,
    first,
    last: Math.max(last, first + Math.max(1, first * 2 ** -50)),
    shift,
    noun: meta.findings || meta.dropped ? "event" : "hit", // what a row is
    taskName: (task) => labelled[task],
    probeName: (probe) => meta.probes[probe].name,
    text: "",
    probe: null,
    task: null,
    range: null, // [from, to] of the timeline's selection
    picked: null, // the hit whose details are shown
    filtered: all, // without regard to the selection
    shown: all,
    /** Calls `draw(what)` after changes of: "filter", "range", "picked". */
    onChange: (draw) => views.push(draw),
    setFilter(change) {
      Object.assign(model, change);
      model.filtered = isFiltered() ? filtered() : all;
      model.setRange(model.range, "filter");
    },
    setRange(range, what = "range") {
      model.range = range && range[1] > range[0] ? range : null;
      const { time } = hits;
      const list = model.filtered;
      model.shown = model.range
        ? list.subarray(lowerBound(list, time, model.range[0]), lowerBound(list, time, model.range[1] + 1e-3))
        : list;
      views.forEach((draw) => draw(what));
    },
    pick(hit) {
      model.picked = hit;
      views.forEach((draw) => draw("picked"));
    },
  };
  const isFiltered = () => model.text !== "" || model.probe !== null || model.task !== null;

  function filtered() {
    const marks = new Uint8Array(hits.n).fill(model.text === "" ? 1 : 0);
    let [probes, tasks] = [[], []];
    if (model.text !== "") {
      markText(hits, model.text, marks);
      const words = model.text.toLowerCase();
      const has = (name) => name.toLowerCase().includes(words);
      probes = meta.probes.map((probe) => has(probe.name));
      tasks = labelled.map(has);
    }
    const list = new Uint32Array(hits.n);
    let n = 0;
    for (let i = 0; i < hits.n; i++) {
      const [probe, task] = [hits.probe[i], hits.task[i]];
      if (model.probe !== null && model.probe !== probe) continue;
      if (model.task !== null && model.task !== task) continue;
      if (marks[i] || probes[probe] || tasks[task]) list[n++] = i;
    }
    return list.slice(0, n);
  }

  return model;
}
