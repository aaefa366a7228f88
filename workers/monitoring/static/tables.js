// Workers, parts of sources, heaviest keys and slots, and problems.

import { field, KeyedList, make, setShown, setText, setWidth } from "./dom.js";
import { bytes, clock, cores, duration, eventTime, exact, percent, perSecond, short } from "./format.js";

/** A table whose rows are kept; on a narrow screen each row becomes a block with the names of its columns. */
function makeTable(parent, columns, makeRow) {
  const head = make("tr", {}, ...columns.map(([name, kind]) => make("th", { scope: "col", class: kind || "", text: name })));
  const body = make("tbody");
  parent.append(make("table", {}, make("thead", {}, head), body));
  return new KeyedList(body, (item) => {
    const cells = columns.map(([name, kind]) => make("td", { class: kind || "", "data-label": name }));
    const row = make("tr", {}, ...cells);
    return { element: row, update: makeRow(row, cells, item) };
  });
}

/** Two lines in a cell: a name and something small beneath. */
function twoLines(cell) {
  const upper = make("b"), lower = make("span", { class: "muted small" });
  cell.append(make("div", { class: "two" }, upper, lower));
  return (first, second) => {
    setText(upper, first);
    setText(lower, second);
  };
}

export function makeWorkers() {
  const columns = [["Worker"], ["Time", "time"], ["CPU cores", "number"], ["Memory", "number"], ["Keys", "number"], ["Key groups", "number"], ["Rows/s", "number"]];
  const list = makeTable(field("worker-table"), columns, (row, cells, worker) => {
    row.dataset.testid = `worker-${worker.worker}`;
    const name = twoLines(cells[0]);
    const bars = ["busy", "held", "idle"].map((kind) => make("i", { class: kind }));
    const shares = make("span", { class: "muted small" });
    cells[1].append(make("div", { class: "two" }, make("div", { class: "stack", "aria-hidden": "true" }, ...bars), shares));
    return (worker) => {
      name(`${worker.worker}`, [worker.host, worker.pid && `pid ${worker.pid}`].filter(Boolean).join(" · "));
      const times = [worker.busy, worker.waiting, worker.idle];
      times.forEach((share, index) => setWidth(bars[index], share));
      const waiting = worker.waiting >= 0.005 ? `, ${percent(worker.waiting)} back\u2011pressure` : ""; // a hyphen that breaks no line
      setText(shares, `${percent(worker.busy)} busy${waiting}`);
      setText(cells[2], cores(worker.cpu));
      setText(cells[3], bytes(worker.rss_bytes));
      setText(cells[4], short(worker.keys, 1e6));
      setText(cells[5], exact(worker.slots));
      setText(cells[6], perSecond(worker.in_per_s));
    };
  });
  return (view) => {
    list.update(view.workers, (worker) => worker.worker);
    setShown("workers-empty", view.workers.length === 0);
  };
}

const shownParts = 100;
const keptOrder_ms = 5000; // rows that change places every second cannot be read

export function makeParts() {
  const columns = [["Partition"], ["Event time, UTC", "number"], ["Lag", "number"], ["To be read", "number"], ["Rows read", "number"]];
  const list = makeTable(field("part-table"), columns, (row, cells) => {
    const name = twoLines(cells[0]);
    const lag = make("span"), idle = make("span", { class: "badge small-badge", text: "idle" });
    cells[2].append(idle, lag);
    return (part) => {
      name(/^\d+$/.test(part.part) ? `partition ${part.part}` : part.part || part.source, [part.part && part.source, `worker ${part.worker}`, part.position].filter(Boolean).join(" · "));
      setText(cells[1], eventTime(part.watermark));
      setText(lag, duration(part.lag_s));
      setShown(idle, Boolean(part.idle));
      setShown(lag, !part.idle);
      setText(cells[3], unread(part));
      setText(cells[4], short(part.rows, 1e6));
    };
  });
  const keyOf = (part) => `${part.source}\u0000${part.part}\u0000${part.worker}`;
  const byLag = (one, other) => compare(other.lag_s, one.lag_s) || compare(other.lag_rows, one.lag_rows);
  let ranks = new Map(), rankedAt = -Infinity;
  return (view) => {
    if (performance.now() - rankedAt > keptOrder_ms) {
      rankedAt = performance.now();
      ranks = new Map([...view.parts].sort(byLag).map((part, index) => [keyOf(part), index]));
    }
    const sorted = [...view.parts].sort((one, other) => compare(ranks.get(keyOf(one)), ranks.get(keyOf(other))));
    list.update(sorted.slice(0, shownParts), keyOf);
    const more = sorted.length > shownParts ? `${shownParts} of ${exact(sorted.length)} partitions, ` : "";
    setText("parts-note", sorted.length ? `${more}largest lag first` : "");
    setShown("parts-empty", sorted.length === 0);
  };
}

/** For sorting: what is unknown is the least. */
function compare(one, other) {
  return (one ?? -1) - (other ?? -1);
}

function unread(part) {
  if (part.lag_rows !== null && part.lag_rows !== undefined) return `${short(part.lag_rows, 1e6)} rows`;
  return bytes(part.lag_bytes);
}

function makeBars(name, title) {
  const list = new KeyedList(field(name), () => {
    const label = make("b"), note = make("span", { class: "muted small" }), bar = make("i"), share = make("span", { class: "figure" });
    return {
      element: make("li", {}, make("div", { class: "bar-label" }, label, note, share), make("div", { class: "bar", "aria-hidden": "true" }, bar)),
      update(item) {
        setText(label, title(item));
        setText(note, `${item.step}${item.worker === null || item.worker === undefined ? "" : `, worker ${item.worker}`}${item.hot ? ": too heavy for one worker" : ""}`);
        setText(share, percent(item.share));
        setWidth(bar, item.share);
      },
    };
  });
  return (items) => {
    list.update(items, (item) => `${item.step}\u0000${title(item)}`);
    setShown(`${name}-empty`, items.length === 0);
  };
}

export function makeHeavy() {
  const keys = makeBars("heavy-keys", (item) => item.key);
  const slots = makeBars("heavy-slots", (item) => `key group ${item.slot}`);
  return (view) => {
    keys(view.heavy_keys || []);
    slots(view.heavy_slots || []);
  };
}

const shownSnapshots = 100;

/** The snapshots that are among the events, the newest first. */
export function makeSnapshots() {
  const columns = [["Snapshot"], ["Made", "number"], ["Size", "number"], ["Took", "number"], ["Workers paused", "number"]];
  const list = makeTable(field("snapshot-table"), columns, (row, cells) => {
    const id = make("code");
    cells[0].append(id);
    return (made) => {
      setText(id, made.id);
      setText(cells[1], clock(made.at));
      setText(cells[2], bytes(made.bytes));
      setText(cells[3], duration(made.duration_s));
      setText(cells[4], duration(made.pause_s));
    };
  });
  return (view, events) => {
    const made = events.filter((event) => event.kind === "SnapshotCompleted").slice(-shownSnapshots).reverse();
    list.update(made, (event) => event.number);
    const count = view.snapshots?.made || 0;
    setText("snapshots-note", count > made.length ? `the last ${exact(made.length)} of ${exact(count)}` : "");
    setText("snapshots-empty", view.snapshots ? "None so far." : "The job runs without snapshots, so a failure ends it.");
    setShown("snapshots-empty", made.length === 0);
  };
}

const problemKinds = { Error: "Error", NodeFailed: "Worker failed", Restarting: "Restart", Ended: "The job failed" };
const shownProblems = 100;

/** Steps that drop rows first, then failures, newest first; each text once, with how often it came. */
export function makeProblems() {
  const list = new KeyedList(field("problems"), () => {
    const title = make("b"), place = make("code"), text = make("pre"), trace = make("pre", { class: "trace" }), time = make("time", { class: "muted small" });
    const element = make("li", {}, make("div", { class: "problem-head" }, title, place, time), text, trace);
    return {
      element,
      update(problem) {
        element.className = `tone-${problem.tone}`;
        setText(title, problem.title);
        setText(place, problem.place || "");
        setText(time, problem.at ? clock(problem.at) : "");
        setText(text, problem.text);
        setText(trace, problem.trace || "");
      },
    };
  });
  return (view, events) => {
    const places = new Map(view.steps.map((step) => [step.step, step.place]));
    const drops = view.steps.filter((step) => step.skipped || step.dead_letters).map((step) => ({
      key: `step ${step.step}`, tone: "warn", title: step.step, place: step.place,
      text: [step.dead_letters && `${exact(step.dead_letters)} rows to the dead letters`, step.skipped && `${exact(step.skipped)} rows skipped`].filter(Boolean).join(", "),
    }));
    const failures = new Map(); // by text
    for (const event of events) {
      const text = event.error || (event.kind === "Error" && event.text);
      if (!text || !(event.kind in problemKinds) || (event.kind === "Ended" && event.how !== "failed")) continue;
      const step = event.step || "";
      const known = failures.get(text) || { count: 0, title: problemKinds[event.kind] + (step ? ` in ${step}` : ""), place: places.get(step), text };
      failures.delete(text); // the newest is the last
      failures.set(text, { ...known, key: `text ${text}`, tone: "bad", at: event.at, trace: event.trace || known.trace, count: known.count + (event.kind !== "Restarting" && event.kind !== "Ended") });
    }
    const above = failures.delete(view.error);
    const shown = [...failures.values()].slice(-shownProblems).reverse();
    for (const problem of shown) {
      if (problem.count > 1) problem.title = `${problem.title}, ${exact(problem.count)} times`;
      if (problem.text.includes(problem.place)) problem.place = "";
    }
    list.update([...drops, ...shown], (problem) => problem.key);
    setShown("problems-above", above);
    setShown("problems-empty", drops.length + shown.length === 0 && !above);
  };
}
