// The curve of rows read and written per second over the last ten minutes that this page has seen.

import { setShown, setText } from "./dom.js";
import { rate, short } from "./format.js";

const window_s = 600;

export class Rates {
  constructor(box) {
    this.box = box;
    this.data = [[], [], []]; // times, read, written
    this.rescales = []; // {from, to} in unix seconds
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot && this.build());
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(box);
  }

  size() {
    return { width: this.box.clientWidth, height: this.box.clientHeight };
  }

  build() {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("muted"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const line = (name) => ({ stroke: colour(name), width: 2, points: { show: false } });
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      padding: [10, 28, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { range: (plot, least, most) => [Math.min(least, most - 60), most] }, y: { range: (plot, least, most) => [0, Math.max(most * 1.12, 1)] } },
      axes: [{ ...axis, size: 26, space: 70, values: (plot, times) => times.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) },
        { ...axis, size: 62, values: (plot, values) => values.map((value) => short(value).replace(".0", "")) }],
      series: [{}, { ...line("read"), fill: colour("read-soft") }, { ...line("written") }],
      hooks: { drawClear: [(plot) => this.drawRescales(plot, colour("rescale-soft"))], setCursor: [() => this.showFigures()] },
    }, this.data, this.box);
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
  showFigures() {
    const [times, read, written] = this.data;
    const index = this.plot?.cursor.idx ?? times.length - 1;
    setText("chart-read", rate(read[index]));
    setText("chart-written", rate(written[index]));
  }

  add(at, totals) {
    const [times, read, written] = this.data;
    if (!at || at <= times.at(-1)) return; // 0: nothing is known yet
    times.push(at);
    read.push(totals.read_per_s);
    written.push(totals.written_per_s);
    while (times[0] < at - window_s) for (const column of this.data) column.shift();
    if (!this.plot) this.build();
    else if (!document.hidden) this.plot.setData(this.data);
    setShown("rates-hint", times.length < 30);
    this.showFigures();
  }

  /** The job has ended: nothing more is drawn. */
  end({ totals, duration_s }) {
    const average = (rows) => rate(rows / Math.max(duration_s, 0.001));
    setText("rates-hint", `The job has ended. On average it read ${average(totals.read)} and wrote ${average(totals.written)}.`);
    setShown("rates-hint", true);
    setShown(this.box, this.data[0].length > 1);
  }
}
