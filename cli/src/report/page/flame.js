// The flame graph of the stacks of the hits that are shown, the outermost function on top.

const ROOT = 0;
const FLAME_ROW = 20;
const NARROWEST = 0.0012; // of the width; what is narrower is left out

/** The stacks by functions alone: calls from several places of one function are one. The first node is the root. */
function byFunction({ frames, nodes }) {
  const names = ["all"];
  const parents = [0];
  const known = new Map();
  const nodeOf = new Uint32Array(nodes.frame.length);
  nodes.frame.forEach((frame, node) => {
    // Callers come before those that they call.
    const parent = nodes.parent[node] === NO_NODE ? 0 : nodeOf[nodes.parent[node]];
    const name = frames[frame][0];
    const key = `${parent} ${name}`;
    if (!known.has(key)) {
      known.set(key, names.length);
      names.push(name);
      parents.push(parent);
    }
    nodeOf[node] = known.get(key);
  });
  return { names, parents, nodeOf };
}

function Flame(model) {
  const { hits, meta } = model;
  const isEmpty = !meta.nodes.frame.length;
  $("flame").hidden = isEmpty;
  if (isEmpty) return;
  const { names, parents, nodeOf } = byFunction(meta);
  const graph = $("flame-graph");
  const children = names.map(() => []);
  parents.forEach((parent, node) => node !== ROOT && children[parent].push(node));
  let totals = new Float64Array(names.length);
  let top = ROOT; // the node that has the whole width
  let words = "";

  function add() {
    totals = new Float64Array(names.length);
    for (const hit of model.shown) if (hits.node[hit] !== NO_NODE) totals[nodeOf[hits.node[hit]]]++;
    for (let node = names.length - 1; node > ROOT; node--) totals[parents[node]] += totals[node];
    for (const list of children) list.sort((a, b) => totals[b] - totals[a] || a - b);
    if (!totals[top]) top = ROOT;
    draw();
  }

  const isFound = (node) => words !== "" && node !== ROOT && names[node].toLowerCase().includes(words);
  const shareOf = (node) => `${((100 * totals[node]) / Math.max(totals[ROOT], 1)).toFixed(1)} %`;

  function draw() {
    const boxes = [];
    let deepest = 0;
    const place = (node, depth, left, width, isAbove) => {
      deepest = Math.max(deepest, depth);
      boxes.push(box(node, depth, left, width, isAbove));
    };
    const above = [];
    for (let node = top; node !== ROOT; ) above.unshift((node = parents[node]));
    above.forEach((node, depth) => place(node, depth, 0, 1, true));
    const waiting = [[top, above.length, 0, 1]];
    while (waiting.length) {
      const [node, depth, left, width] = waiting.pop();
      place(node, depth, left, width, false);
      let from = left;
      for (const child of children[node]) {
        const share = (totals[child] / totals[top]) || 0;
        if (share < NARROWEST) break;
        waiting.push([child, depth + 1, from, share]);
        from += share;
      }
    }
    graph.style.height = `${(deepest + 1) * FLAME_ROW}px`;
    graph.replaceChildren();
    // One by one: a call takes only so many.
    for (const one of boxes) graph.append(one);
    boxes[above.length].tabIndex = 0;
    $("flame-reset").disabled = top === ROOT;
    sayFound();
    say(top);
  }

  function box(node, depth, left, width, isAbove) {
    const element = make(
      "button",
      {
        type: "button",
        role: "treeitem",
        tabindex: -1,
        class: [isAbove && "above", isFound(node) && "found"].filter(Boolean).join(" "),
        "aria-level": depth + 1,
        "aria-label": `${names[node]}, ${plural(totals[node], "hit")}, ${shareOf(node)}`,
        "data-node": node,
      },
      width > 0.012 || isAbove ? names[node] : "",
    );
    element.style.left = `${100 * left}%`;
    element.style.width = `${100 * width}%`;
    element.style.top = `${depth * FLAME_ROW}px`;
    element.style.height = `${FLAME_ROW}px`;
    element.style.setProperty("--tone", String(node === ROOT ? 0 : toneOf(names[node])));
    return element;
  }

  /** One of eight shades, the same for each name. */
  function toneOf(name) {
    let sum = 0;
    for (let i = 0; i < name.length; i++) sum = (sum * 31 + name.charCodeAt(i)) >>> 0;
    return sum % 8;
  }

  function say(node) {
    const found = isFound(node) ? " · found" : "";
    $("flame-now").textContent = `${names[node]} · ${plural(totals[node], "hit")} · ${shareOf(node)}${found}`;
  }

  /** How many hits have a function that was looked for in their stack, each counted once. */
  function sayFound() {
    let n = 0;
    const waiting = words === "" ? [] : [ROOT];
    while (waiting.length) {
      const node = waiting.pop();
      if (isFound(node)) n += totals[node];
      else for (const child of children[node]) if (totals[child]) waiting.push(child);
    }
    const stacks = `${plural(totals[ROOT], "hit")} with a stack`;
    $("flame-hint").textContent = words === "" ? stacks : `${stacks}, ${count(n)} (${((100 * n) / Math.max(totals[ROOT], 1)).toFixed(1)} %) in what was found`;
  }

  function zoomTo(node) {
    top = node;
    draw();
    focus(node);
  }

  function focus(node) {
    const element = graph.querySelector(`[data-node="${node}"]`);
    if (!element) return;
    graph.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    element.tabIndex = 0;
    element.focus({ preventScroll: true });
  }

  const boxOf = (event) => {
    const element = event.target.closest("[data-node]");
    return element ? Number(element.dataset.node) : null;
  };
  graph.addEventListener("click", (event) => boxOf(event) !== null && zoomTo(boxOf(event)));
  for (const kind of ["pointerover", "focusin"]) graph.addEventListener(kind, (event) => boxOf(event) !== null && say(boxOf(event)));
  graph.addEventListener("pointerleave", () => say(top));
  graph.addEventListener("keydown", (event) => {
    const node = boxOf(event);
    if (node === null) return;
    const beside = node === ROOT ? [ROOT] : children[parents[node]];
    const to = {
      ArrowUp: node === ROOT ? ROOT : parents[node],
      ArrowDown: children[node][0],
      ArrowLeft: beside[beside.indexOf(node) - 1],
      ArrowRight: beside[beside.indexOf(node) + 1],
    };
    if (event.key === "Escape") zoomTo(ROOT);
    else if (event.key in to) focus(to[event.key] ?? node);
    else return;
    event.preventDefault();
  });
  $("flame-reset").addEventListener("click", () => zoomTo(ROOT));
  $("flame-search").addEventListener("input", (event) => {
    words = event.target.value.trim().toLowerCase();
    draw();
  });
  whenQuiet(model, add);
}
