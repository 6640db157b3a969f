// Time-series charts over uPlot: axes, legend with the value under the cursor, gaps, zoom by dragging.
"use strict";

const HEIGHT = 210;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function formatted(value, unit) {
  if (value === null || value === undefined) return "–";
  const digits = value !== 0 && Math.abs(value) < 10 ? 2 : 0;
  return `${value.toLocaleString("en", { maximumFractionDigits: digits })}${unit}`;
}

function timeLabels(_, splits, __, ___, increment) {
  const options = increment >= 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(increment < 60 ? { second: "2-digit" } : {}) };
  return splits.map((at) => (at === null ? "" : new Date(at * 1000).toLocaleString("en-GB", options)));
}

class Chart {
  // `lines` are {label, column, colour}; `unit` follows each value; `log` makes the scale logarithmic.
  constructor(box, { lines, unit = "", log = false, empty }) {
    this.box = box;
    this.lines = lines;
    this.unit = unit;
    this.log = log;
    this.empty = empty;
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  // `columns` has `at` and one array for each line; a null is a gap.
  show(columns, lines = this.lines) {
    const redraw = lines !== this.lines;
    this.lines = lines;
    this.data = [columns.at, ...lines.map((line) => columns[line.column].map((value) => (this.log && value !== null ? Math.max(value, 0.1) : value)))];
    if (redraw || this.plot === null || this.isEmpty() !== this.wasEmpty) this.draw();
    else this.plot.setData(this.data, !this.isZoomed());
    this.describe();
  }

  isEmpty() {
    return !this.data.slice(1).some((column) => column.some((value) => value !== null));
  }

  isZoomed() {
    const { min, max } = this.plot.scales.x;
    const at = this.plot.data[0];
    return at.length > 1 && (min > at[0] || max < at[at.length - 1]);
  }

  resize() {
    if (this.plot !== null && this.box.clientWidth > 0) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
  }

  draw() {
    if (this.plot !== null) this.plot.destroy();
    this.box.replaceChildren();
    this.wasEmpty = this.isEmpty();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const values = (_, splits) => splits.map((value) => (value === null ? "" : formatted(value, "")));
    this.plot = new uPlot({
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      scales: { y: this.log ? { distr: 3, log: 10 } : { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
      axes: [{ ...axis, values: timeLabels, space: 70 }, { ...axis, values, size: 52 }],
      cursor: { drag: { x: true, y: false }, focus: { prox: 24 } },
      series: [
        { label: "time", value: (_, at) => (at === null ? "–" : new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" })) },
        ...this.lines.map((line) => ({
          label: line.label, stroke: colour(line.colour), width: 2, dash: line.dash, spanGaps: false,
          points: { show: (plot, index, first, last) => last - first < 40, size: 5 }, value: (_, value) => formatted(value, this.unit),
        })),
      ],
    }, this.data, this.box);
    if (this.wasEmpty) {
      const note = document.createElement("p");
      note.className = "empty";
      note.textContent = this.empty;
      this.box.append(note);
    }
    this.describe();
  }

  describe() {
    const canvas = this.box.querySelector("canvas");
    const last = this.lines.map((line, index) => {
      const column = this.data[index + 1];
      return `${line.label} ${formatted(column.length ? column[column.length - 1] : null, this.unit)}`;
    });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Chart. Last values: ${last.join(", ")}`);
  }
}
