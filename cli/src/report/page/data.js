// The recording: columns of numbers, one entry a hit, and what the numbers stand for.

/** What the data block `element` holds, which is gzip in base64. The block is removed. */
async function unpacked(element) {
  const text = element.textContent.trim();
  element.remove();
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** A text in which nothing acts on the text around it or cannot be seen. */
function visible(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => {
    const code = c.codePointAt(0).toString(16);
    return c < "\x80" ? `\\x${code.padStart(2, "0")}` : `\\u{${code}}`;
  });
}

/** In the order of `html/blocks.rs`. */
const COLUMNS = ["timeLow", "timeHigh", "shiftLow", "shiftHigh", "vcpu", "probe", "task", "kind", "tookLow", "tookHigh", "node", "textEnd"];
/** Kinds: 0 a hit, 1 a return, 2 an access; from here on what is no hit: 3 a write that was found, 4 what a scan has found, 5 a file. */
const FOUND = 3;
const DROPPED = 5;
const NO_CPU = 0xffffffff;
const NO_SHIFT = 0x80000000;
const NO_NODE = 0xffffffff;

/** Reads all of the recording; `progress` is told how many hits were read. */
async function readRecording(progress) {
  const json = new TextDecoder().decode(await unpacked(document.getElementById("meta")));
  const meta = JSON.parse(json, (_, value) => {
    if (typeof value === "string") return visible(value);
    if (!value || typeof value !== "object" || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [visible(name), member]));
  });
  const n = meta.count;
  const hits = {
    n,
    time: new Float64Array(n), // nanoseconds since the guest was started
    guest: new Float64Array(n), // by the guest's clock; NaN where that is not known
    took: new Float64Array(n), // of returns; NaN of others
    vcpu: new Uint32Array(n),
    probe: new Uint32Array(n),
    task: new Uint32Array(n),
    kind: new Uint8Array(n),
    node: new Uint32Array(n),
    row: null, // where a hit is in the recording, when that is not in order of time
    blocks: [], // {from, text, ends}: the values of a block's hits, one behind the other, and where each ends
  };
  let from = 0;
  for (const element of document.querySelectorAll("script.hits")) {
    from += readBlock(await unpacked(element), hits, from);
    progress(from, n);
  }
  sortByTime(hits);
  return { meta, hits };
}

function readBlock(buffer, hits, from) {
  const n = new Uint32Array(buffer, 0, 1)[0];
  const c = {};
  COLUMNS.forEach((name, at) => (c[name] = new Uint32Array(buffer, 4 + 4 * n * at, n)));
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(buffer, 4 + 4 * n * COLUMNS.length));
  hits.blocks.push({ from, text, ends: c.textEnd.slice() });
  hits.vcpu.set(c.vcpu, from);
  hits.probe.set(c.probe, from);
  hits.task.set(c.task, from);
  hits.kind.set(c.kind, from);
  hits.node.set(c.node, from);
  for (let i = 0; i < n; i++) {
    const at = from + i;
    const time = c.timeHigh[i] * 2 ** 32 + c.timeLow[i];
    const known = c.shiftHigh[i] !== NO_SHIFT;
    hits.time[at] = time;
    const guest = known ? time + (c.shiftHigh[i] | 0) * 2 ** 32 + c.shiftLow[i] : NaN;
    // The guest may say anything.
    hits.guest[at] = guest >= 0 && guest <= Number.MAX_SAFE_INTEGER ? guest : NaN;
    hits.took[at] = c.kind[i] === 1 ? c.tookHigh[i] * 2 ** 32 + c.tookLow[i] : NaN;
  }
  return n;
}

/** CPUs write side by side, so that a recording is nearly in order. */
function sortByTime(hits) {
  const { n, time } = hits;
  let sorted = true;
  for (let i = 1; i < n && sorted; i++) sorted = time[i - 1] <= time[i];
  if (sorted) return;
  const order = Uint32Array.from({ length: n }, (_, i) => i).sort((a, b) => time[a] - time[b] || a - b);
  for (const column of ["time", "guest", "took", "vcpu", "probe", "task", "kind", "node"]) {
    const old = hits[column].slice();
    for (let i = 0; i < n; i++) hits[column][i] = old[order[i]];
  }
  hits.row = order;
}

/** The values of hit `i` as text. */
function textOf(hits, i) {
  const row = hits.row ? hits.row[i] : i;
  const { from, text, ends } = hits.blocks.findLast((block) => block.from <= row);
  const at = row - from;
  return visible(text.slice(at ? ends[at - 1] : 0, ends[at]));
}

/** Marks the hits whose values have `words` in them, in any case. */
function markText(hits, words, marks) {
  const pattern = new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  const found = new Uint8Array(hits.n);
  for (const { from, text, ends } of hits.blocks) {
    let at = 0;
    pattern.lastIndex = 0;
    for (let match; (match = pattern.exec(text)); ) {
      while (ends[at] <= match.index) at++;
      // What begins in one hit and ends in the next is in neither.
      const isWhole = match.index + match[0].length <= ends[at];
      if (isWhole) found[from + at] = 1;
      pattern.lastIndex = isWhole ? ends[at] : match.index + 1;
    }
  }
  for (let i = 0; i < hits.n; i++) if (found[hits.row ? hits.row[i] : i]) marks[i] = 1;
}
