// Draw charts with uPlot: lines over steps or sizes, and the heat map. Every chart has its values as text below it and
// a table, and the arrow keys move through its points.

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7b52c7", "#777777", "#b3401f",
  "#00696b", "#b0004f", "#4f6f00", "#33539e", "#6a3d3d", "#2b2b2b"];
const DARK_COLOURS = ["#56b4e9", "#ff9d4d", "#3ed6a4", "#e79bc6", "#e5c355", "#9cd3f7", "#b79bf0", "#b8b8b8", "#ff9373",
  "#7fe0e0", "#ff86b5", "#c3dd6f", "#a8baff", "#d9b3b3", "#f2f2f2"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [3, 6], [1, 2], [12, 2, 2, 2, 2, 2]];
const charts = new Set();

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const colour = (index) => (isDark() ? DARK_COLOURS : COLOURS)[index % COLOURS.length];
const styleValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function forgetCharts() {
  for (const chart of charts) chart.destroy();
  charts.clear();
  seen.disconnect();
}

// Build the frame that all charts share. `label`: the chart in one sentence; `read(index)`: the values at a point, as text.
function figure({ title, text, label, wide, height, read, values, head }, draw) {
  const plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": label });
  const reading = h("p", { class: "reading", "aria-live": "polite" });
  const details = h("details", null, h("summary", null, "Table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(scrolled(`${title}, table`, values()));
  });
  const element = h("figure", { class: wide ? "wide" : null }, h("figcaption", null, h("h3", null, title), text ? h("p", null, text) : null, head), plot, reading, details);
  const size = () => ({ width: Math.max(220, plot.clientWidth), height: height || (wide ? 300 : 210) });
  let chart = null;
  const say = (index) => { reading.textContent = ""; if (has(index)) add(reading, [read(index)]); };
  plot.style.minHeight = `${size().height}px`;
  const start = () => {
    if (chart) return;
    chart = draw(plot, size(), say);
    charts.add(chart);
    new ResizeObserver(() => { if (charts.has(chart) && plot.clientWidth > 0) chart.setSize(size()); }).observe(plot);
  };
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !chart) return;
    event.preventDefault();
    const last = chart.data[0].length - 1;
    const at = has(chart.cursor.idx) ? chart.cursor.idx : -1;
    const index = Math.min(last, Math.max(0, at + step));
    chart.setCursor({ left: chart.valToPos(chart.data[0][index], "x"), top: chart.over.clientHeight / 2 });
    say(index);
  });
  element.start = start; // once it stands in the page: only there it has a width
  plot.addEventListener("focus", start);
  return element;
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    entry.target.start();
  }
}, { rootMargin: "200px" });

// A chart takes milliseconds, so it is drawn when it scrolls into view.
function drawWhenSeen(element) {
  if (element.start) seen.observe(element);
}

function axes(xTitle, unit, options) {
  const stroke = styleValue("--soft");
  const grid = { stroke: styleValue("--line"), width: 1 };
  const font = "12px system-ui, 'DejaVu Sans', sans-serif";
  const isShare = unit === "share" || unit === "probability";
  const values = (chart, splits) => splits.map((value) => (has(value) ? axisText(value, isShare) : ""));
  const x = { stroke, grid, ticks: grid, font, labelFont: font, label: xTitle, labelSize: 18, size: 30, ...(options.xAxis || {}) };
  const yGrid = options.isLogY ? { ...grid, filter: powersOfTen } : grid;
  const y = { stroke, grid: yGrid, ticks: yGrid, font, labelFont: font, label: isShare ? "%" : unit || "plain number", labelSize: 18, size: 52, values, ...(options.yAxis || {}) };
  return [x, y];
}

// Keep the grid lines of a logarithmic axis that have a number: all of them together look like a grey band.
function powersOfTen(chart, splits) {
  return splits.map((value) => (has(value) && Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9 ? value : null));
}

function axisText(value, isShare) {
  if (isShare) return String(Number((100 * value).toPrecision(4)));
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}

// series: {label, values, errors: half-widths of intervals, or none}; all share xs.
function lines(options) {
  const { title, text, xs, xTitle = "training step", series, unit = "", scale = "plain", wide = false, head = null } = options;
  const isLog = scale === "log";
  const usable = series.map((one) => one.values.map((value) => (has(value) && !(isLog && value <= 0) ? value : null)));
  const label = `${title}. ${series.map((one) => inWords(one, xs, xTitle, unit)).join("; ")}. Arrow keys read values.`;
  const read = (index) => `${xTitle} ${xs[index]}: ` + series.filter((one) => has(one.values[index]))
    .map((one) => `${one.label} ${withUnit(one.values[index], unit)}${one.errors && has(one.errors[index]) ? ` ± ${withUnit(one.errors[index], unit)}` : ""}`).join(", ");
  const values = () => table(title, [{ title: xTitle }, ...series.map((one) => ({ title: one.label }))],
    xs.map((x, index) => [String(x), ...series.map((one) => withUnit(one.values[index], unit))]));
  return figure({ title, text, label, wide, read, values, head }, (plot, size, say) => new uPlot({
    ...size,
    cursor: { y: false, focus: { prox: 24 }, sync: xTitle === "training step" ? { key: "steps" } : undefined },
    legend: { show: series.length > 1, live: false, markers: { dash: (chart, index) => (DASHES[(index - 1) % DASHES.length].length ? "dashed" : "solid") } },
    scales: { x: { time: false, distr: options.xLog ? 3 : 1, log: 2, range: rangeOf(xs, options.xLog) }, y: { distr: isLog ? 3 : 1, range: isLog ? undefined : yRange(unit, errorEnds(series)) } },
    axes: axes(xTitle, unit, { xAxis: options.xLog ? { values: (chart, splits) => splits.map((value) => (xs.includes(value) ? String(value) : "")) } : { values: (chart, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")) }, isLogY: isLog }),
    series: [{ label: xTitle }, ...series.map((one, index) => ({
      label: plain(one.label), stroke: colour(index), width: 2, dash: DASHES[index % DASHES.length], spanGaps: true, points: { show: xs.length <= 60, size: 5 },
    }))],
    hooks: {
      draw: [(chart) => series.forEach((one, index) => one.errors && drawErrors(chart, one, index))],
      setCursor: [(chart) => say(chart.cursor.idx)],
    },
  }, [xs, ...usable], plot));
}

function rangeOf(xs, isLog) {
  if (isLog) return undefined;
  return (chart, low, high) => (low === high ? [low - 1, high + 1] : [low, high]);
}

// Start the axis of shares at 0 where the values are close to it.
function yRange(unit, ends) {
  return (chart, lowest, highest) => {
    if (!has(lowest)) return [0, 1];
    const isShare = unit === "share" || unit === "probability";
    const within = (end) => (isShare ? Math.min(1, Math.max(0, end)) : end);
    const low = Math.min(lowest, ...ends.map(within));
    const high = Math.max(highest, ...ends.map(within));
    if (isShare && low === high) return [0, 1];
    const bottom = low >= 0 && low < 0.6 * high ? 0 : low;
    const room = (high - bottom || Math.abs(high) || 1) * 0.06;
    const top = isShare && high <= 1 ? Math.min(1, high + room) : high + room;
    return [bottom === 0 ? 0 : bottom - room, top === bottom ? bottom + 1 : top];
  };
}

// Return the lowest and the highest end of all intervals.
function errorEnds(series) {
  const ends = [];
  for (const { values, errors } of series) {
    values.forEach((value, index) => { if (has(value) && errors && has(errors[index])) ends.push(value - errors[index], value + errors[index]); });
  }
  return ends.length ? [Math.min(...ends), Math.max(...ends)] : [];
}

function drawErrors(chart, one, index) {
  const context = chart.ctx;
  const { left, top, width, height } = chart.bbox;
  context.save();
  context.beginPath();
  context.rect(left - 2 * devicePixelRatio, top, width + 4 * devicePixelRatio, height); // bars at the first and the last step are whole
  context.clip();
  context.setLineDash([]);
  context.strokeStyle = colour(index);
  context.lineWidth = 1.5 * devicePixelRatio;
  context.beginPath();
  chart.data[0].forEach((x, place) => {
    if (!has(one.values[place]) || !has(one.errors[place])) return;
    const across = chart.valToPos(x, "x", true);
    context.moveTo(across, chart.valToPos(one.values[place] - one.errors[place], "y", true));
    context.lineTo(across, chart.valToPos(one.values[place] + one.errors[place], "y", true));
  });
  context.stroke();
  context.restore();
}

function inWords(one, xs, xTitle, unit) {
  const known = xs.map((x, index) => [x, one.values[index]]).filter(([, value]) => has(value));
  if (!known.length) return `${one.label}: no values`;
  const [firstX, first] = known[0];
  const [lastX, last] = known[known.length - 1];
  return `${one.label} from ${withUnit(first, unit)} at ${xTitle} ${firstX} to ${withUnit(last, unit)} at ${lastX}`;
}

// shares[x][row]: fraction of a column, with rows from the bottom.
function heatMap({ title, text, xs, rows, shares, unitText }) {
  const most = Math.max(1e-9, ...shares.flat());
  const read = (index) => `training step ${xs[index]}: ` + rows.map((row, place) => [row, shares[index][place]]).filter(([, share]) => share > 0)
    .map(([row, share]) => `${row} ${percent(share)}`).join(", ");
  const values = () => table(title, [{ title: "step" }, ...rows.map((row) => ({ title: row }))], xs.map((x, index) => [String(x), ...shares[index].map((share) => percent(share))]));
  const label = `${title}. ${xs.length} steps, ${rows.length} rows from ${rows[0]} to ${rows[rows.length - 1]}. Arrow keys read a step.`;
  return figure({ title, text, label, wide: true, height: 24 * rows.length + 60, read, values, head: heatLegend(most, unitText) }, (plot, size, say) => new uPlot({
    ...size,
    cursor: { y: false, points: { show: false } },
    legend: { show: false },
    scales: { x: { time: false, range: [xs[0] - 0.5, xs[xs.length - 1] + 0.5] }, y: { range: [0, rows.length] } },
    axes: axes("training step", "", {
      xAxis: { values: (chart, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")), grid: { show: false } },
      yAxis: { label: "right rollouts of a prompt", size: 74, splits: () => rows.map((row, place) => place + 0.5), values: () => rows, grid: { show: false }, ticks: { show: false } },
    }),
    series: [{}, { stroke: "transparent", points: { show: false } }],
    hooks: {
      drawClear: [(chart) => drawCells(chart, xs, rows, shares, most)],
      setCursor: [(chart) => say(chart.cursor.idx)],
    },
  }, [xs, xs.map(() => null)], plot));
}

function drawCells(chart, xs, rows, shares, most) {
  const context = chart.ctx;
  const heat = styleValue("--heat");
  context.save();
  xs.forEach((x, index) => {
    const left = chart.valToPos(x - 0.5, "x", true);
    const right = chart.valToPos(x + 0.5, "x", true);
    rows.forEach((row, place) => {
      const share = shares[index][place];
      if (!share) return;
      const top = chart.valToPos(place + 1, "y", true);
      const bottom = chart.valToPos(place, "y", true);
      context.fillStyle = `rgb(${heat} / ${0.06 + 0.94 * Math.sqrt(share / most)})`;
      context.fillRect(left, top + 0.5, Math.max(1, right - left - (right - left > 6 ? 1 : 0)), bottom - top - 1);
    });
  });
  context.restore();
}

function heatLegend(most, unitText) {
  const steps = [0, 0.04, 0.16, 0.36, 0.64, 1].map((part) => h("span", null,
    h("span", { class: "swatch", style: { "--swatch": `rgb(${styleValue("--heat")} / ${part ? 0.06 + 0.94 * Math.sqrt(part) : 0})` } }), percent(part * most, 0)));
  return h("div", { class: "legend" }, unitText, steps);
}
