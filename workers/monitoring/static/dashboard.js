// The dashboard of malstrom-py: which page is shown, and what a new view of the job changes on it.

import { setUpCommands } from "./commands.js";
import { field, KeyedList, make, setAttribute, setShown, setText, setWidth } from "./dom.js";
import { age, bytes, clock, duration, eventTime, exact, percent, plural, rate, short } from "./format.js";
import { edgeKey, Graph, makeEdgeLine } from "./graph.js";
import { showJobs } from "./job_list.js";
import { makeQuery } from "./query.js";
import { Rates } from "./rates.js";
import { makeRecords } from "./records.js";
import { follow, homeAddress, jobOfAddress } from "./server.js";
import { makeShadow } from "./shadow.js";
import { makeHeavy, makeParts, makeProblems, makeSnapshots, makeWorkers } from "./tables.js";
import { rescalesAndRestarts, Timeline } from "./timeline.js";

/** States in which nothing changes any more. */
const ended = new Set(["finished", "failed", "stopped", "gone"]);
/** Those in which it is known that nothing flows. */
const atRest = new Set(["finished", "failed", "stopped"]);
const lostAfter_s = 5;
const keptEvents = 2000;

const showPage = (page) => { document.body.dataset.page = page; };
const showUnauthorized = () => {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  showPage("unauthorized");
  document.title = "Wrong or missing token";
};

for (const link of document.querySelectorAll('[data-link="home"]')) link.href = homeAddress();
const job = jobOfAddress();
if (job === null) {
  showPage("jobs");
  document.title = "Jobs – malstrom";
  showJobs(showUnauthorized);
} else {
  showPage("job");
  showJob(job);
}

function showJob(job) {
  const graph = new Graph(field("graph"), openDetails);
  const rates = new Rates(["rates", "rates-busy", "rates-lag"].map(field));
  const timeline = new Timeline();
  const workers = makeWorkers(), parts = makeParts(), heavy = makeHeavy(), problems = makeProblems(), snapshots = makeSnapshots();
  const records = makeRecords(job), query = makeQuery(job);
  const details = makeDetails(makeShadow(job), (step) => { records.close(); graph.select(null); graph.focus(step); });
  let view = null, events = [], seenAt = 0, isLost = false;

  setText("job-name", job);
  document.title = `${job} – malstrom`;
  setUpCommands(job, () => view, showUnauthorized);
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => view && graph.zoom(button.dataset.zoom));
  }

  follow(job, {
    onView(newView) {
      view = atRest.has(newView.state) ? stilled(newView) : newView;
      seenAt = performance.now();
      isLost = false;
      if (document.body.dataset.page !== "job") showPage("job");
      if (!document.hidden) render();
    },
    onRates(rows) {
      rates.add(rows);
    },
    onEvents(added, isFirst) {
      if (isFirst) {
        events = [];
        if (!timeline.continues(added)) timeline.clear();
      }
      events = [...events, ...added].slice(-keptEvents);
      timeline.add(added);
      rates.rescales = timeline.rescales;
      if (view) renderEvents();
    },
    onLost() {
      isLost = true;
      renderAges();
    },
    onRefused(status) {
      // With figures on the page, another process has taken the address: the figures stay.
      if (!view && status === 401) showUnauthorized();
      else if (!view) showPage("missing");
      return status === 401;
    },
  });
  setInterval(renderAges, 1000);
  document.addEventListener("visibilitychange", () => view && !document.hidden && render());

  function render() {
    renderHeader(view);
    renderTiles(view);
    graph.update(view);
    workers(view);
    parts(view);
    heavy(view);
    query(view);
    rates.draw();
    if (ended.has(view.state)) rates.end(view);
    renderEvents();
    renderAges();
    details.update(view);
  }

  function renderEvents() {
    const trace = view.error && events.findLast((event) => event.trace && event.error === view.error)?.trace;
    setText("error-trace", trace || "");
    setShown("error-trace", Boolean(trace));
    problems(view, events);
    snapshots(view, events);
    if (view.at) timeline.place(view.at - view.duration_s, view.at);
  }

  /** What changes with time alone: the age of the figures. */
  function renderAges() {
    const isGone = view?.state === "gone";
    const figuresAge = isGone ? Date.now() / 1000 - view.at : view && view.age_s + (performance.now() - seenAt) / 1000;
    const lost = view ? isGone || (!ended.has(view.state) && figuresAge > (isLost ? 2 : lostAfter_s)) : isLost;
    document.body.classList.toggle("is-lost", lost);
    setShown("lost", lost);
    if (!lost) return;
    setText("lost-text", view ? `These numbers are ${age(figuresAge)} old.` : "Waiting for it.");
    setShown("actions", false);
  }

  function openDetails(step) {
    graph.select(step);
    details.open(step, view);
    records.open(step);
  }
}

/** The view of a job that has ended, without the rates of its last second. */
function stilled(view) {
  const rates = new Set(["read_per_s", "written_per_s", "in_per_s", "out_per_s", "per_s", "bytes_per_s", "busy", "waiting", "backlog", "cpu"]);
  const still = (item) => Object.fromEntries(Object.entries(item).map(([name, value]) => [name, rates.has(name) && value ? 0 : value]));
  const [steps, edges, workers] = [view.steps, view.edges, view.workers].map((items) => items.map(still));
  return { ...view, totals: still(view.totals), steps, edges, workers };
}

function renderHeader(view) {
  const badge = field("state");
  setText(badge, view.state);
  setAttribute(badge, "data-state", view.state);
  setAttribute(badge, "title", view.phase || view.state);
  setText("duration", duration(view.duration_s));
  setShown("actions", view.can_command === true && !ended.has(view.state));
  document.title = `${view.job}: ${view.state} – malstrom`;

  setShown("error", Boolean(view.error));
  if (view.error) {
    const what = view.state === "failed" ? "The job failed" : view.state === "recovering" ? "The job restarts after a failure" : "The last error";
    const { step, place } = view.failure || {};
    setText("error-title", step ? `${what} in step ${step}` : what);
    setText("error-place", place && !view.error.includes(place) ? place : "");
    setText("error-text", view.error);
  }
  const calm = (view.state === "finished" || view.state === "stopped") && !view.error;
  setShown("ended", calm);
  if (!calm) return;
  const counts = `${exact(view.totals.read)} rows read, ${exact(view.totals.written)} written`;
  setText("ended-title", view.state === "finished" ? "The job is finished." : "The job was stopped.");
  setText("ended-text", `${counts}, in ${duration(view.duration_s)}. ${view.note || ""}`);
}

function renderTiles(view) {
  const { totals, snapshots, moving } = view;
  setText("read-rate", rate(totals.read_per_s));
  setText("written-rate", rate(totals.written_per_s));
  for (const [name, total] of [["total-read", totals.read], ["total-written", totals.written]]) {
    setText(name, exact(total));
    setAttribute(field(name), "data-value", total);
  }

  const working = view.workers.length || view.workers_wanted;
  setText("workers", exact(working));
  setAttribute(field("workers"), "data-value", working);
  const moved = moving && `${exact(moving.slots)} / ${exact(moving.of_slots)} key groups moved`;
  const target = working !== view.workers_wanted && !ended.has(view.state) ? `to become ${exact(view.workers_wanted)}` : null;
  setText("workers-note", moved || target || rescalesAndRestarts(view));
  setShown("moving", Boolean(moving));
  field("workers-note").title = moving ? `${plural(moving.keys, "key")}, ${bytes(moving.bytes)}` : "";
  if (moving) setWidth(field("moving").firstElementChild, moving.slots / moving.of_slots);

  setText("event-lag", duration(view.event_lag_s));
  setText("watermark", (view.watermark ?? null) === null ? "no event time" : eventTime(view.watermark));

  setText("snapshot-age", snapshots?.at ? `${age(Math.max(0, view.at - snapshots.at))} ago` : "–");
  setText("snapshot-note", snapshots?.made ? `${exact(snapshots.made)} made, ${bytes(snapshots.bytes)}` : snapshots?.at ? "none in this run" : snapshots ? "none so far" : "no snapshots");
  field("snapshot-note").title = snapshots?.last ? `${snapshots.last}, ${clock(snapshots.at)}, took ${duration(snapshots.duration_s)}, pause ${duration(snapshots.pause_s)}` : "";

  for (const [name, count] of [["late", totals.late], ["skipped", totals.skipped], ["dead-letters", totals.dead_letters]]) {
    setText(name, short(count, 1e5));
    field(name).classList.toggle("some", count > 0);
  }
}

/** The panel with all figures of one step. */
function makeDetails(updateShadow, onClose) {
  const rows = [
    ["Kind", (step) => step.kind], ["Defined at", (step) => step.place || "–"], ["Functions of rows", (step) => step.compiled || "–"],
    ["Rows in", (step) => `${exact(step.rows_in)}\n${rate(step.in_per_s)}`], ["Rows out", (step) => `${exact(step.rows_out)}\n${rate(step.out_per_s)}`],
    ["Busy, of a worker’s time", (step) => percent(step.busy)], ["Filtered out", (step) => exact(step.filtered)],
    ["Late", (step) => exact(step.late)], ["Skipped", (step) => exact(step.skipped)], ["Dead letters", (step) => exact(step.dead_letters)],
    ["Keys", (step) => exact(step.keys)], ["State", (step) => bytes(step.state_bytes)],
    ["Event time, UTC", (step) => eventTime(step.watermark)], ["Lag", (step) => duration(step.lag_s)],
  ].map(([label, show]) => {
    const value = make("dd");
    field("details-list").append(make("div", {}, make("dt", { text: label }), value));
    return { value, show };
  });
  const edges = new KeyedList(field("details-edges"), makeEdgeLine);
  const panel = field("details");
  let shown = null;

  function update(view) {
    const step = view.steps.find((step) => step.step === shown);
    if (!step) return;
    for (const { value, show } of rows) setText(value, show(step));
    const linked = view.edges.filter((edge) => edge.source === shown || edge.target === shown);
    edges.update(linked.map((edge) => ({ edge, step: shown })), ({ edge }) => `${shown}\u0000${edgeKey(edge)}`);
    updateShadow(view, shown);
  }
  function open(name, view) {
    shown = name;
    setText("details-title", name);
    update(view);
    setShown(panel, true);
    panel.scrollIntoView({ block: "nearest" });
    field("details-title").focus({ preventScroll: true });
  }
  function close() {
    if (panel.hidden) return;
    setShown(panel, false);
    onClose(shown);
    shown = null;
  }
  field("details-close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && close());
  return { open, update };
}
