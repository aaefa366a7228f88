// The graph of the job: laid out once for a set of steps and edges, then updated in place.

import { make, makeSvg, setAttribute, setText } from "./dom.js";
import { percent, perSecond, rate, short } from "./format.js";

const nodeSize = { width: 168, height: 80 };
const labelSize = { LR: { width: 66, height: 44 }, TB: { width: 70, height: 30 } };
const margin = 16;
const narrow = 700; // below this width the graph goes from top to bottom
const scales = { least: 0.3, readable: 0.6, most: 1.6 };
const statefulKinds = /state|key_by|fold|mean|count|sum|min|max|top|window|join|dedup|sort/;

export const edgeKey = (edge) => [edge.source, edge.port, edge.target].join("\u0000");

/** How much back-pressure an edge has: "", "pressed" or "blocked". */
export const pressure = (edge) => (edge.waiting > 0.5 ? "blocked" : edge.waiting > 0.1 ? "pressed" : "");

export class Graph {
  constructor(box, onSelect) {
    this.box = box;
    this.onSelect = onSelect;
    this.signature = "";
    this.view = null;
    this.zoomed = null; // null: fits, but stays readable
    new ResizeObserver(() => this.view && this.update(this.view)).observe(box);
  }

  update(view) {
    this.view = view;
    const direction = this.box.clientWidth < narrow ? "TB" : "LR";
    const shape = [view.steps.map((step) => [step.step, step.kind]), view.edges.map((edge) => [edgeKey(edge), edge.exchange])];
    const signature = direction + JSON.stringify(shape);
    if (signature !== this.signature) {
      this.signature = signature;
      this.build(view, direction);
    }
    this.scale();
    const failed = view.error ? view.failure?.step : null;
    for (const step of view.steps) this.nodes.get(step.step)(step, step.step === failed, view.shadows?.[step.step]);
    for (const edge of view.edges) this.edges.get(edgeKey(edge))?.(edge);
  }

  build(view, direction) {
    const layout = new dagre.graphlib.Graph({ multigraph: true });
    layout.setGraph({ rankdir: direction, nodesep: 26, ranksep: 14, edgesep: 14, marginx: margin, marginy: margin });
    layout.setDefaultEdgeLabel(() => ({}));
    const names = new Set(view.steps.map((step) => step.step));
    for (const name of names) layout.setNode(name, { ...nodeSize });
    const drawn = view.edges.filter((edge) => names.has(edge.source) && names.has(edge.target));
    for (const edge of drawn) layout.setEdge(edge.source, edge.target, { ...labelSize[direction], labelpos: "c" }, edge.port);
    dagre.layout(layout);

    const { width, height } = view.steps.length ? layout.graph() : nodeSize; // no steps are known yet
    this.size = { width, height };
    this.svg = makeSvg("svg", { viewBox: `0 0 ${this.size.width} ${this.size.height}`, role: "group", "aria-label": "Graph of the steps" });
    this.nodes = new Map();
    this.edges = new Map();
    const lines = makeSvg("g"), labels = makeSvg("g"), nodes = makeSvg("g");
    for (const edge of drawn) {
      const placed = layout.edge({ v: edge.source, w: edge.target, name: edge.port });
      const ends = [layout.node(edge.source), layout.node(edge.target)];
      const [update, elements] = makeEdge(edge, placed, ends, direction, lines, labels);
      this.edges.set(edgeKey(edge), update);
      for (const element of elements) element.addEventListener("click", () => this.onSelect(edge.source)); // what passes here
    }
    for (const step of view.steps) this.nodes.set(step.step, this.makeNode(step, layout.node(step.step), nodes));
    this.svg.append(lines, labels, nodes);
    this.box.replaceChildren(view.steps.length ? this.svg : make("p", { class: "empty", text: "The steps appear once the job has started." }));
    this.width = null;
    this.scale();
    this.box.scrollTop = layout.node(view.steps[0]?.step)?.y * this.shownScale - this.box.clientHeight / 2 || 0;
    if (this.selected) this.select(this.selected);
  }

  scale() {
    const room = this.box.clientWidth - 2;
    const fitting = Math.min(1, room / this.size.width);
    const scale = this.zoomed ?? Math.max(scales.readable, fitting);
    const width = Math.floor(this.size.width * scale);
    if (width === this.width) return;
    this.width = width;
    this.shownScale = scale;
    setAttribute(this.svg, "width", width);
    setAttribute(this.svg, "height", Math.floor(this.size.height * scale));
  }

  /** "in", "out", or "fit"; what is in the middle stays there. */
  zoom(how) {
    const { box, shownScale: before } = this;
    const fitting = Math.min(1, (box.clientWidth - 2) / this.size.width, (box.clientHeight - 2) / this.size.height);
    const wanted = how === "fit" ? fitting : before * (how === "in" ? 1.2 : 1 / 1.2);
    this.zoomed = Math.min(scales.most, Math.max(scales.least, wanted));
    const middle = [box.scrollLeft + box.clientWidth / 2, box.scrollTop + box.clientHeight / 2];
    this.scale();
    const by = this.shownScale / before;
    box.scrollTo(middle[0] * by - box.clientWidth / 2, middle[1] * by - box.clientHeight / 2);
  }

  select(name) {
    this.selected = name;
    for (const node of this.svg.querySelectorAll(".node")) {
      setAttribute(node, "aria-pressed", node.dataset.step === name);
    }
  }

  focus(name) {
    this.svg.querySelector(`.node[data-step="${CSS.escape(name)}"]`)?.focus();
  }

  makeNode(step, place, parent) {
    const { width, height } = nodeSize;
    const left = place.x - width / 2, top = place.y - height / 2;
    const role = step.kind === "source" || step.kind === "sink" ? step.kind : statefulKinds.test(step.kind) ? "stateful" : "plain";
    const rows = makeSvg("text", { class: "rows", x: width - 12, y: 49, "text-anchor": "end" });
    const busyBar = makeSvg("rect", { class: "busy-bar", x: 14, y: 63, width: 0, height: 6, rx: 3 });
    const busyText = makeSvg("text", { class: "busy-text", x: width - 12, y: 70, "text-anchor": "end" });
    const badges = makeSvg("g", { class: "badges" });
    const node = makeSvg("g", {
      class: `node ${role}`, transform: `translate(${left} ${top})`, tabindex: 0, role: "button", "aria-pressed": "false",
      "aria-label": `${step.step}, ${step.kind}: show details`, "data-step": step.step, "data-testid": `step-${step.step}`,
    },
    makeSvg("title", { text: [step.step, step.place, step.compiled].filter(Boolean).join(", ") }),
    makeSvg("rect", { class: "box", width, height, rx: 9 }),
    makeSvg("path", { class: "stripe", d: `M9 .5A8.5 8.5 0 0 0 .5 9V${height - 9}A8.5 8.5 0 0 0 9 ${height - 0.5}H5V.5Z` }),
    makeSvg("text", { class: "name", x: 14, y: 26, text: shortened(step.step, width - 26, "600 15px") }),
    makeSvg("text", { class: "kind", x: 14, y: 49, text: shortened(step.kind, 58, "12px") }),
    rows, makeSvg("rect", { class: "busy-track", x: 14, y: 63, width: width - 64, height: 6, rx: 3 }), busyBar, busyText, badges);
    node.addEventListener("click", () => this.onSelect(step.step));
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.onSelect(step.step);
    });
    parent.append(node);

    let badgesShown = "";
    return (step, hasFailed, shadow) => {
      node.classList.toggle("failed", hasFailed);
      setAttribute(node, "data-rows-in", step.rows_in);
      setAttribute(node, "data-rows-out", step.rows_out);
      setText(rows, rate(step.kind === "source" ? step.in_per_s || step.out_per_s : step.in_per_s));
      setAttribute(busyBar, "width", ((width - 64) * Math.min(1, Math.max(0, step.busy || 0))).toFixed(1));
      busyBar.classList.toggle("hot", step.busy >= 0.8);
      setText(busyText, percent(step.busy));
      const counts = [["late", step.late], ["skipped", step.skipped], ["dead", step.dead_letters]].filter(([, count]) => count > 0);
      if (shadow) counts.unshift(shadow.different ? ["differ", shadow.different] : ["shadow"]);
      if (hasFailed) counts.unshift(["failed"]);
      const text = counts.map(([what, count]) => (count ? `${short(count, 1000)} ${what}` : what)).join("|");
      if (text !== badgesShown) badges.replaceChildren(...drawBadges((badgesShown = text), counts));
    };
  }
}

function drawBadges(text, counts) {
  let right = nodeSize.width - 8;
  return text.split("|").filter(Boolean).map((label, index) => {
    const width = label.length * 6.3 + 12;
    right -= width + 4;
    return makeSvg("g", { class: `pill ${counts[index][0]}`, transform: `translate(${right + 4} -9)` },
      makeSvg("rect", { width, height: 18, rx: 9 }), makeSvg("text", { x: width / 2, y: 12.6, "text-anchor": "middle", text: label }));
  });
}

function makeEdge(edge, placed, [source, target], direction, lines, labels) {
  const horizontal = direction === "LR";
  const points = placed.points.map(({ x, y }) => ({ x, y }));
  const half = horizontal ? nodeSize.width / 2 : nodeSize.height / 2;
  points[0] = horizontal ? { x: source.x + half, y: source.y } : { x: source.x, y: source.y + half };
  const end = horizontal ? { x: target.x - half, y: target.y } : { x: target.x, y: target.y - half };
  points[points.length - 1] = horizontal ? { x: end.x - 7, y: end.y } : { x: end.x, y: end.y - 7 };
  const curve = points.slice(1).map((to, index) => {
    const from = points[index];
    const across = (from.x + to.x) / 2, down = (from.y + to.y) / 2;
    return horizontal ? `C${across} ${from.y} ${across} ${to.y} ${to.x} ${to.y}` : `C${from.x} ${down} ${to.x} ${down} ${to.x} ${to.y}`;
  });
  const tip = horizontal ? `M${end.x} ${end.y}l-9 -4.5v9z` : `M${end.x} ${end.y}l-4.5 -9h9z`;
  const line = makeSvg("path", { class: "edge-line", d: `M${points[0].x} ${points[0].y}${curve.join("")}` });
  const arrow = makeSvg("path", { class: "edge-tip", d: tip });
  line.classList.toggle("exchange", edge.exchange);
  const texts = ["edge-rate", "edge-note", "edge-note"].map((kind) => makeSvg("text", { class: kind, "text-anchor": "middle" }));
  const label = makeSvg("g", { class: "edge-label", transform: `translate(${placed.x ?? points[1].x} ${placed.y ?? points[1].y})` }, ...texts);
  lines.append(line, arrow);
  labels.append(label);

  const elements = [line, arrow, label];
  const update = (edge) => {
    const level = pressure(edge);
    for (const element of elements) {
      element.classList.toggle("pressed", level === "pressed");
      element.classList.toggle("blocked", level === "blocked");
    }
    // The rate is above a horizontal line and the notes are beneath; on a vertical line all are in its middle.
    const notes = [level && `${percent(edge.waiting)} waiting`, edge.backlog > 0 && `${short(edge.backlog, 1000)} queued`].filter(Boolean);
    const shown = [perSecond(edge.per_s), notes[0] || "", notes[1] || ""];
    shown.forEach((text, index) => {
      setText(texts[index], text);
      setAttribute(texts[index], "y", horizontal ? [-6, 15, 28][index] : 4 - 6 * notes.length + 12 * index);
    });
  };
  return [update, elements];
}

const ruler = document.createElement("canvas").getContext("2d");

/** `text`, cut so that it is not wider than `width`. */
function shortened(text, width, font) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  let shown = text;
  while (shown.length > 1 && ruler.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  return shown;
}

/** What the list of edges in the details shows of an edge. */
export function makeEdgeLine() {
  const name = make("span"), figures = make("span", { class: "figure muted" });
  return {
    element: make("li", {}, name, figures),
    update({ edge, step }) {
      const port = edge.port && edge.port !== "out" ? ` (${edge.port})` : "";
      setText(name, edge.target === step ? `← ${edge.source}${port}` : `→ ${edge.target}${port}`);
      const parts = [rate(edge.per_s)];
      if (edge.exchange) parts.push("between workers");
      if (edge.bytes_per_s !== null && edge.bytes_per_s !== undefined) parts.push(`${short(edge.bytes_per_s)}B/s`);
      if (edge.backlog > 0) parts.push(`${short(edge.backlog)} queued`);
      if (edge.waiting > 0) parts.push(`${percent(edge.waiting)} back-pressure`);
      setText(figures, parts.join(" · "));
    },
  };
}
