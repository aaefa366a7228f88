// What happened to the job: lanes of marks over time, and the same as a list, newest first.

import { field, make, setShown, setText } from "./dom.js";
import { clock, exact, plural } from "./format.js";

const most = 300; // marks and lines that are kept

const kinds = {
  Autoscaled: [null, "rescale", "Scaled by load"],
  RescaleBegun: ["rescales", "rescale", "Rescale begins"],
  RescaleEnded: ["rescales", "rescale", "Rescale ended"],
  SnapshotCompleted: ["snapshots", "snapshot", "Snapshot"],
  Restarting: ["failures", "warn", "Restart"],
  NodeFailed: ["failures", "bad", "Worker failed"],
  Error: ["failures", "bad", "Error"],
  WorkerJoined: [null, "quiet", "Worker joined"],
  WorkerLeft: [null, "quiet", "Worker left"],
  Input: [null, "quiet", "Input"],
  InputClosed: [null, "quiet", "Input ended"],
  InputSilent: [null, "warn", "Input silent"],
  InputRecovered: [null, "quiet", "Input has records again"],
  BackPressureBegun: [null, "warn", "Back-pressure"],
  BackPressureEnded: [null, "quiet", "The back-pressure is over"],
  HotKeyBegun: [null, "warn", "Hot key"],
  HotKeyEnded: [null, "quiet", "No longer hot"],
  Stop: [null, "quiet", "Worker stopped"],
  Reload: [null, "rescale", "Code reloaded"],
  ParameterChanged: [null, "rescale", "Parameter set"],
  Ended: ["failures", "quiet", "The job ended"],
  EventsMissed: [null, "warn", "Events missed"],
};

const lanes = ["rescales", "snapshots", "failures"];

function describe(event) {
  const [lane, tone, title] = kinds[event.kind] || [null, "quiet", event.kind];
  const failed = (event.kind === "RescaleEnded" && event.error) || (event.kind === "Ended" && event.how === "failed");
  const finished = event.kind === "Ended" && event.how === "finished";
  return { lane: event.kind === "Ended" && !failed ? null : lane, tone: failed ? "bad" : finished ? "good" : tone, title };
}

/** What it says, without the text of an error: that is shown once, above or among the errors. */
const sentence = (event) => event.brief || event.text || describe(event).title;

export class Timeline {
  constructor() {
    this.list = field("timeline");
    this.tracks = new Map();
    for (const lane of lanes) {
      const track = make("div", { class: "track" });
      this.tracks.set(lane, track);
      field("lanes").append(make("div", { class: "lane" }, make("span", { class: "muted", text: lane }), track));
    }
    this.clear();
    const tooltip = field("tooltip");
    field("lanes").addEventListener("pointerover", ({ target }) => {
      const mark = this.marks.find(({ element }) => element === target);
      setShown(tooltip, Boolean(mark));
      if (!mark) return;
      setText(tooltip, mark.text());
      const place = target.getBoundingClientRect();
      tooltip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - tooltip.offsetWidth - 8))}px`;
      tooltip.style.top = `${place.top - tooltip.offsetHeight - 8}px`;
    });
    field("lanes").addEventListener("pointerleave", () => setShown(tooltip, false));
  }

  clear() {
    this.list.replaceChildren();
    for (const track of this.tracks.values()) track.replaceChildren();
    this.marks = [];
    this.rescales = []; // {from, to}, for the curve
    this.newest = null;
    this.last = null; // the last event that is shown
  }

  /** Whether `events` are those that are shown, and perhaps more. */
  continues(events) {
    return events.some(({ number, at }) => number === this.last?.number && at === this.last?.at);
  }

  add(events) {
    for (const event of events) {
      if (event.number <= this.last?.number) continue;
      this.last = event;
      this.addLine(event);
      this.addMark(event);
    }
    while (this.list.children.length > most) this.list.lastElementChild.remove();
    while (this.marks.length > most) this.marks.shift().element.remove();
    setShown("timeline-empty", !this.last);
  }

  /** One line; snapshots that follow each other share one. */
  addLine(event) {
    const { tone } = describe(event);
    const repeats = event.kind === "SnapshotCompleted" && this.newest?.kind === event.kind;
    const line = repeats ? this.newest : this.makeLine(event.kind, tone);
    line.count += 1;
    setText(line.time, clock(event.at));
    setText(line.repeats, line.count > 1 ? `${line.count} × ` : "");
    setText(line.text, sentence(event));
    this.newest = line;
  }

  makeLine(kind, tone) {
    const line = { kind, count: 0, time: make("time"), repeats: make("b"), text: make("span") };
    const words = make("div", {}, line.repeats, line.text);
    this.list.prepend(make("li", { class: `tone-${tone}` }, line.time, make("i", { "aria-hidden": "true" }), words));
    return line;
  }

  addMark(event) {
    const { lane, tone } = describe(event);
    if (!lane) return;
    const running = this.rescales.at(-1);
    if (event.kind === "RescaleEnded" && running && !running.to) {
      running.to = event.at;
      const mark = this.marks.findLast(({ event }) => event.kind === "RescaleBegun");
      if (mark) {
        mark.to = event.at;
        mark.text = () => `${clock(event.at)} ${sentence(event)}`;
        mark.element.classList.toggle("tone-bad", tone === "bad");
      }
      return;
    }
    if (event.kind === "RescaleBegun") {
      if (running && !running.to) return; // another target for the same rescale
      this.rescales.push({ from: event.at, to: null });
    }
    const element = make("i", { class: `mark tone-${tone}` });
    this.tracks.get(lane).append(element);
    this.marks.push({ element, event, to: null, text: () => `${clock(event.at)} ${sentence(event)}` });
  }

  /** Places the marks between the start of the job and `now`. */
  place(start, now) {
    const whole = Math.max(1, now - start);
    const share = (at) => `${(100 * Math.min(1, Math.max(0, (at - start) / whole))).toFixed(2)}%`;
    for (const { element, event, to } of this.marks) {
      element.style.left = share(event.at);
      if (event.kind !== "RescaleBegun") continue;
      const end = to ?? now;
      element.style.width = share(start + end - event.at);
    }
    setText("timeline-range", `${clock(start)} to ${clock(now)}`);
  }
}

/** How many rescales and restarts there were. */
export function rescalesAndRestarts(view) {
  const parts = [];
  if (view.rescales) parts.push(plural(view.rescales, "rescale"));
  if (view.restarts) parts.push(plural(view.restarts, "restart"));
  return parts.join(", ") || `${exact(0)} rescales`;
}
