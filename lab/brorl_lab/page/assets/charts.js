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
  const tall = height || (wide ? 300 : 210);
  const size = () => (isOnPaper ? { width: wide ? 660 : 310, height: Math.min(tall, 660) } : { width: Math.max(220, plot.clientWidth), height: tall });
  let chart = null;
  const say = (index) => { reading.textContent = ""; if (has(index)) add(reading, [read(index)]); };
  plot.style.setProperty("--tall", `${tall}px`);
  // Draw the chart, anew where it is drawn, because its colours are those of the theme.
  const paint = () => {
    if (chart) chart.destroy();
    else new ResizeObserver(() => { if (charts.has(chart) && plot.clientWidth > 0) chart.setSize(size()); }).observe(plot);
    charts.delete(chart);
    chart = draw(plot, size(), say);
    charts.add(chart);
  };
  const start = () => { if (!chart) paint(); };
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
  Object.assign(element, { start, paint }); // once it stands in the page: only there it has a width
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

// On paper every chart is drawn, in light colours and as wide as a column.
let isOnPaper = false;
let theme; // before printing
function showOnPaper(isBegun) {
  const { dataset } = document.documentElement;
  if (isBegun && !isOnPaper) theme = dataset.theme;
  isOnPaper = isBegun;
  if (isBegun) dataset.theme = "light";
  else if (theme) dataset.theme = theme;
  else delete dataset.theme;
  for (const element of document.querySelectorAll("figure")) element.paint();
}
addEventListener("beforeprint", () => showOnPaper(true));
addEventListener("afterprint", () => showOnPaper(false));

function axes(xTitle, unit, options) {
  const stroke = styleValue("--soft");
  const grid = { stroke: styleValue("--line"), width: 1 };
  const font = "12px system-ui, 'DejaVu Sans', sans-serif";
  const isShare = isShareUnit(unit);
  const values = (chart, splits) => splits.map((value) => (has(value) ? axisText(value, isShare) : ""));
  const label = isShare ? "%" : unit || null;
  const width = (chart, texts) => 16 + 7 * Math.max(3, ...(texts || []).map((text) => text.length));
  const x = { stroke, grid, ticks: grid, font, labelFont: font, label: xTitle, labelSize: 18, size: 30, ...(options.xAxis || {}) };
  const yGrid = options.isLogY ? { ...grid, filter: powersOfTen } : grid;
  const y = { stroke, grid: yGrid, ticks: yGrid, font, labelFont: font, label, labelSize: label ? 18 : 0, size: width, values, ...(options.yAxis || {}) };
  return [x, y];
}

// Keep the grid lines of a logarithmic axis that have a number: all of them together look like a grey band.
function powersOfTen(chart, splits) {
  return splits.map((value) => (has(value) && Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9 ? value : null));
}

function axisText(value, isShare) {
  if (isShare) return String(Number((100 * value).toPrecision(6)));
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(4)).toExponential();
  return String(Number(value.toPrecision(6)));
}

// series: {label, values, errors: standard errors, or none, intervals: ends of 95 % intervals, or none}; all share xs.
function lines(options) {
  const { title, text, xs, xTitle = "training step", series, unit = "", scale = "plain", wide = false, head = null } = options;
  const isLog = scale === "log";
  const usable = series.map((one) => one.values.map((value) => (has(value) && !(isLog && value <= 0) ? value : null)));
  const label = `${title}. ${series.map((one) => inWords(one, xs, xTitle, unit)).join("; ")}. Arrow keys read values.`;
  const grains = series.map((one) => noise(one.values));
  const valueText = (one, index) => withError(one.values[index], one.errors && one.errors[index], unit, grains[series.indexOf(one)]);
  const read = (index) => `${xTitle} ${xs[index]}: ` + series.filter((one) => has(one.values[index])).map((one) => `${one.label} ${valueText(one, index)}`).join(", ");
  const values = () => table(title, [{ title: xTitle }, ...series.map((one) => ({ title: one.label }))],
    xs.map((x, index) => [String(x), ...series.map((one) => valueText(one, index))]));
  return figure({ title, text, label, wide, read, values, head }, (plot, size, say) => new uPlot({
    ...size,
    cursor: { y: false, focus: { prox: 24 }, sync: xTitle === "training step" ? { key: "steps" } : undefined },
    legend: { show: series.length > 1, live: false, markers: { dash: (chart, index) => (DASHES[(index - 1) % DASHES.length].length ? "dashed" : "solid") } },
    scales: { x: { time: false, distr: options.xLog ? 3 : 1, log: 2, range: rangeOf(xs, options.xLog) }, y: { distr: isLog ? 3 : 1, range: isLog ? undefined : yRange(unit, ...rangesOf(series, unit)) } },
    axes: axes(xTitle, unit, { xAxis: options.xLog ? { values: (chart, splits) => splits.map((value) => (xs.includes(value) ? String(value) : "")) } : { values: (chart, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")) }, isLogY: isLog }),
    series: [{ label: xTitle }, ...series.map((one, index) => ({
      label: plain(one.label), stroke: colour(index), width: 2, dash: DASHES[index % DASHES.length], spanGaps: true, points: { show: xs.length <= 60, size: 5 },
    }))],
    hooks: {
      draw: [(chart) => series.forEach((one, index) => { if (chart.series[index + 1].show) { drawIntervals(chart, one, index); drawOutliers(chart, one, index); } })],
      setCursor: [(chart) => say(chart.cursor.idx)],
    },
  }, [xs, ...usable], plot));
}

function rangeOf(xs, isLog) {
  if (isLog) return undefined;
  return (chart, low, high) => (low === high ? [low - 1, high + 1] : [low, high]);
}

// Start the axis of shares at 0 where the values are close to it. `ends`: lowest and highest end of all intervals;
// `usual`: where the axis has to end so that outliers do not flatten the curves, null without outliers.
function yRange(unit, ends, usual = null) {
  return (chart, lowest, highest) => {
    if (!has(lowest)) return [0, 1];
    const isShare = isShareUnit(unit);
    const within = (end) => (isShare ? Math.min(1, Math.max(0, end)) : end);
    const low = usual ? usual[0] : Math.min(lowest, ...ends.map(within));
    const high = usual ? usual[1] : Math.max(highest, ...ends.map(within));
    if (isShare && low === high) return [0, 1];
    const bottom = low >= 0 && low < 0.6 * high ? 0 : low;
    const room = (high - bottom || Math.abs(high) || 1) * 0.06;
    const top = isShare && high <= 1 ? Math.min(1, high + room) : high + room;
    return [bottom === 0 ? 0 : bottom - room, top === bottom ? bottom + 1 : top];
  };
}

// Return the lowest and the highest end of all intervals, and those of all values without outliers where these flatten
// the curves: where the rest takes less than a fifth of the axis. Shares lie between 0 and 1, so none flattens them.
function rangesOf(series, unit) {
  const ends = series.flatMap((one) => [0, 1].map((end) => (one.intervals || []).map((interval) => (interval ? interval[end] : null))));
  const curves = [...series.map((one) => one.values), ...ends].filter((values) => values.some(has));
  const outer = (found) => (found.length ? [Math.min(...found.map(([low]) => low)), Math.max(...found.map(([, high]) => high))] : []);
  const whole = outer(curves.map(extremes));
  const usual = outer(curves.map(usualExtremes));
  const isFlat = usual[1] > usual[0] && usual[1] - usual[0] < (whole[1] - whole[0]) / 5;
  return [outer(ends.filter((values) => values.some(has)).map(extremes)), isFlat && !isShareUnit(unit) ? usual : null];
}

function extremes(values) {
  const known = values.filter(has);
  return [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
}

// Return the extremes of the values without outliers: an eighth of them at most and no three in a row, further from the
// quartiles than three times what lies between these. A curve that starts low and rises has no outlier there.
function usualExtremes(values) {
  const known = values.filter(has);
  const sorted = [...known].sort((a, b) => a - b);
  const [low, high] = [0.25, 0.75].map((part) => sorted[Math.round(part * (sorted.length - 1))]);
  const reach = 3 * (high - low);
  const isFar = known.map((value, index) => (index > 0 && value < low - reach) || value > high + reach);
  const isRow = isFar.some((far, index) => far && isFar[index + 1] && isFar[index + 2]);
  const isMany = isFar.filter(Boolean).length > Math.ceil(known.length / 8);
  return extremes(known.length < 5 || isRow || isMany ? known : known.filter((value, index) => !isFar[index]));
}

function drawIntervals(chart, one, index) {
  if (!one.intervals) return;
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
    if (!one.intervals[place]) return;
    const across = chart.valToPos(x, "x", true);
    one.intervals[place].forEach((end, number) => context[number ? "lineTo" : "moveTo"](across, chart.valToPos(end, "y", true)));
  });
  context.stroke();
  context.restore();
}

// Mark each value beyond the axis with a triangle at the edge and its number.
function drawOutliers(chart, one, index) {
  const context = chart.ctx;
  const { left, top, width, height } = chart.bbox;
  const { min, max } = chart.scales.y;
  const size = 6 * devicePixelRatio;
  let [before, line] = [-Infinity, 0]; // numbers of neighbours stand below each other
  context.save();
  context.fillStyle = colour(index);
  context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  [context.textBaseline, context.textAlign] = ["middle", "center"];
  context.strokeStyle = styleValue("--card"); // behind the number
  context.lineWidth = 4 * devicePixelRatio;
  chart.data[0].forEach((x, place) => {
    const value = chart.data[index + 1][place];
    const across = chart.valToPos(x, "x", true);
    if (!has(value) || (value >= min && value <= max) || across < left || across > left + width) return;
    const [edge, inwards] = value > max ? [top, size] : [top + height, -size];
    context.beginPath();
    context.moveTo(across, edge);
    context.lineTo(across - size, edge + 1.6 * inwards);
    context.lineTo(across + size, edge + 1.6 * inwards);
    context.fill();
    line = across - before < 7 * size ? line + 1 : 0;
    before = across;
    const middle = Math.min(left + width - 2 * size, Math.max(left + 2 * size, across));
    for (const write of ["strokeText", "fillText"]) context[write](number(value, Math.abs(value) / 100), middle, edge + (2.6 + 2.2 * line) * inwards);
  });
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
