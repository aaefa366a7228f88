// The curves of the last ten minutes, which the job itself has kept: rows per second, use of time, lag of event time.

import { setShown, setText } from "./dom.js";
import { duration, percent, rate, short } from "./format.js";

const window_s = 600;
const gap_s = 15; // a longer pause between points is a gap in the curve
const columns = ["at", "read", "written", "busy", "held", "lag"]; // as the server sends the rows

const charts = [
  { lines: ["read", "written"], figure: rate, tick: (value) => short(value).replace(".0", ""), top: (most) => Math.max(most * 1.12, 1), hasTimes: true },
  { lines: ["busy", "held"], figure: percent, tick: percent, top: () => 1, splits: [0, 0.5, 1] },
  { lines: ["lag"], figure: duration, tick: duration, top: (most) => Math.max(most * 1.12, 1) },
];

export class Rates {
  /** `boxes`: one for each of the charts. */
  constructor(boxes) {
    this.boxes = boxes;
    this.plots = [];
    this.data = Object.fromEntries(columns.map((name) => [name, []]));
    this.rescales = []; // {from, to} in unix seconds
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plots.length && this.build());
    const fit = () => this.plots.forEach((plot, index) => plot.setSize(sizeOf(boxes[index])));
    for (const box of boxes) new ResizeObserver(fit).observe(box);
  }

  build() {
    for (const plot of this.plots) plot.destroy();
    this.plots = charts.map((chart, index) => this.plot(chart, this.boxes[index]));
  }

  plot(chart, box) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("muted"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const times = { ...axis, size: 26, space: 70, values: (plot, times) => times.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) };
    const values = { ...axis, size: 62, space: 22, values: (plot, values) => values.map(chart.tick) };
    if (chart.splits) values.splits = () => chart.splits;
    const fill = `${chart.lines[0]}-soft`;
    return new uPlot({
      ...sizeOf(box),
      legend: { show: false },
      padding: [chart.hasTimes ? 10 : 6, 28, chart.hasTimes ? 0 : 4, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 }, sync: { key: "rates" } },
      scales: { x: { range: (plot, least, most) => [Math.min(least, most - 60), most] }, y: { range: (plot, least, most) => [0, chart.top(most || 0)] } },
      axes: [chart.hasTimes ? times : { show: false }, values],
      series: [{}, ...chart.lines.map((name, index) => ({ stroke: colour(name), width: 2, points: { show: false }, fill: index ? undefined : colour(fill) }))],
      hooks: { drawClear: [(plot) => this.drawRescales(plot, colour("rescale-soft"))], setCursor: [(plot) => this.showFigures(plot.cursor.idx)] },
    }, this.dataOf(chart), box);
  }

  dataOf(chart) {
    return [this.data.at, ...chart.lines.map((name) => this.data[name])];
  }

  drawRescales(plot, colour) {
    const { left, top, width, height } = plot.bbox;
    for (const { from, to } of this.rescales) {
      const start = Math.max(left, plot.valToPos(from, "x", true)), end = Math.min(left + width, plot.valToPos(to ?? Date.now() / 1000, "x", true));
      if (end < left || start > left + width) continue;
      plot.ctx.fillStyle = colour;
      plot.ctx.fillRect(start, top, Math.max(3, end - start), height);
    }
  }

  /** The figures at the cursor, or the last ones. */
  showFigures(index) {
    const at = index ?? this.data.at.length - 1;
    for (const { lines, figure } of charts) for (const name of lines) setText(`chart-${name}`, figure(this.data[name][at]));
  }

  /** `rows`: of one moment each, in order; those that are there already are passed over. */
  add(rows) {
    const { at } = this.data;
    for (const row of rows) {
      if (row[0] <= at.at(-1)) continue;
      if (row[0] > at.at(-1) + gap_s) this.append([at.at(-1) + 1, ...columns.slice(1).map(() => null)]);
      this.append(row);
    }
    while (at[0] < at.at(-1) - window_s) for (const name of columns) this.data[name].shift();
  }

  append(row) {
    columns.forEach((name, index) => this.data[name].push(row[index] ?? null));
  }

  /** Draws what was added. */
  draw() {
    const { at, lag } = this.data;
    setShown("rates-curves", at.length > 1);
    setShown("rates-lag-part", lag.some((value) => value !== null));
    if (at.length < 2) return;
    if (!this.plots.length) this.build();
    else this.plots.forEach((plot, index) => plot.setData(this.dataOf(charts[index])));
    this.showFigures(this.plots[0].cursor.idx);
  }

  /** The job has ended: nothing more is added. */
  end({ totals, duration_s }) {
    const average = (rows) => rate(rows / Math.max(duration_s, 0.001));
    setText("rates-hint", `The job has ended. On average it read ${average(totals.read)} and wrote ${average(totals.written)}.`);
    setShown("rates-hint", true);
  }
}

const sizeOf = (box) => ({ width: box.clientWidth, height: box.clientHeight });
