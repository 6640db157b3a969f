// Time-series charts over uPlot: axes, legend, tooltip, gaps, zoom by dragging.
"use strict";

const HEIGHT = 210;
const TIME_STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];
const WHOLE_STEPS = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);

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
  // `lines` are {label, column, colour, dash, fill}; `unit` follows each value; `log` makes the scale logarithmic, `whole` one of whole numbers.
  constructor(box, { lines, unit = "", log = false, whole = false, empty }) {
    this.box = box;
    this.lines = lines;
    this.unit = unit;
    this.log = log;
    this.whole = whole;
    this.empty = empty;
    this.data = [[], ...lines.map(() => [])];
    this.window = [0, 1];
    this.zoomed = false;
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  // `columns` has `at` and one array for each line; a null is a gap. `window` is the time shown, also where there are no values.
  show(columns, window, lines = this.lines) {
    const redraw = lines !== this.lines;
    this.lines = lines;
    this.window = window;
    this.data = [columns.at, ...lines.map((line) => columns[line.column].map((value) => (this.log && value !== null ? Math.max(value, 0.1) : value)))];
    if (redraw || this.plot === null || this.isEmpty() !== this.wasEmpty) this.draw();
    else this.plot.setData(this.data, !this.zoomed);
    this.describe();
  }

  isEmpty() {
    return !this.data.slice(1).some((column) => column.some((value) => value !== null));
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
      padding: [10, 24, 0, 0],
      scales: { x: { range: (_, low, high) => (this.zoomed ? [low, high] : this.window) }, y: this.log ? { distr: 3, log: 10, range: (_, low, high) => (low === null ? [1, 1000] : uPlot.rangeLog(low, high, 10, true)) } : { range: (_, low, high) => [0, Math.max((high || 0) * 1.1, this.whole ? 5 : 1)] } },
      axes: [{ ...axis, values: timeLabels, space: 64, incrs: TIME_STEPS }, { ...axis, values, size: 60, ...(this.whole ? { incrs: WHOLE_STEPS } : {}) }],
      cursor: {
        drag: { x: true, y: false }, focus: { prox: 24 },
        bind: { dblclick: (_, __, reset) => (event) => { this.zoomed = false; reset(event); } },
      },
      legend: { live: false, markers: { fill: (plot, index) => plot.series[index].stroke() } },
      hooks: {
        setSelect: [(plot) => { this.zoomed = plot.select.width > 0; }],
        setCursor: [(plot) => this.point(plot)],
      },
      series: [
        {},
        ...this.lines.map((line) => ({
          label: line.label, stroke: colour(line.colour), width: 1.75, dash: line.dash, fill: line.fill ? `${colour(line.colour)}1f` : undefined, spanGaps: false,
          points: { show: (plot, index, first, last) => last - first < 40, size: 5 },
        })),
      ],
    }, this.data, this.box);
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.plot.over.append(this.tip);
    if (this.wasEmpty) {
      const note = document.createElement("p");
      note.className = "empty";
      note.textContent = this.empty;
      this.box.append(note);
    }
    this.describe();
  }

  // Show the values under the cursor beside it.
  point(plot) {
    const { idx, left } = plot.cursor;
    const isShown = idx !== null && idx !== undefined && left >= 0 && !this.wasEmpty;
    this.tip.hidden = !isShown;
    if (!isShown) return;
    const at = new Date(this.data[0][idx] * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
    this.tip.replaceChildren(at, ...this.lines.map((line, index) => {
      const row = document.createElement("div");
      const name = document.createElement("span");
      name.className = line.colour.slice(2);
      name.textContent = line.label;
      row.append(name, formatted(this.data[index + 1][idx], this.unit));
      return row;
    }));
    const isRight = left > plot.over.clientWidth / 2;
    this.tip.classList.toggle("left", isRight);
    this.tip.style.insetInlineStart = isRight ? "" : `${left + 12}px`;
    this.tip.style.insetInlineEnd = isRight ? `${plot.over.clientWidth - left + 12}px` : "";
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
