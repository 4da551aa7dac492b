// Draw the timeline of a step: a row for each track of each process, a bar for each span.

const LANE = 20; // pixels of a row
const MAX_ROWS = 60; // that are drawn at a time

async function showTimeline() {
  const { runs } = await load("overview");
  const part = await load(`timelines/${chosen.run}`);
  const steps = part ? part.steps.filter((step) => holds(`timeline/${chosen.run}/${step}`)) : [];
  const top = [heading("Timeline"), h("p", null, "What each process did in one step, on the driver's clock.")];
  if (!steps.length) return fill(top, h("div", { class: "filters" }, runChoice(runs, showTimeline)), h("p", null, "This run keeps no timelines, or no step is finished."));
  if (!steps.includes(chosen.laneStep)) chosen.laneStep = steps[steps.length - 1];
  const found = await load(`timeline/${chosen.run}/${chosen.laneStep}`);
  const kinds = [...new Set(found.rows.map(([process]) => processKind(process)))];
  if (!kinds.includes(chosen.process)) chosen.process = "";
  const rows = found.rows.map((row, index) => ({ row, index })).filter(({ row }) => !chosen.process || processKind(row[0]) === chosen.process);
  const notes = [];
  if (found.spans.row.length < found.num_all) notes.push(`The longest ${count(found.spans.row.length)} of ${count(found.num_all)} spans are here.`);
  const few = someLanes(rows);
  if (few.length < rows.length) notes.push(`${few.length} of ${rows.length} lanes are drawn, of every process the first; choose a kind of process to see more of its lanes.`);
  if (MODE === "report" && steps.length < part.steps.length) notes.push(`This file has ${steps.length} of ${part.steps.length} timelines; all are in the run folder, under timeline/.`);
  fill(top, h("div", { class: "filters" }, runChoice(runs, showTimeline),
    field("Step", choice(steps.map((step) => [step, step]), chosen.laneStep, (value) => { chosen.laneStep = Number(value); showTimeline(); })),
    field("Processes", choice([["", "all"], ...kinds.map((kind) => [kind, kind])], chosen.process, (value) => { chosen.process = value; showTimeline(); }))),
    notes.length ? h("p", { class: "note" }, notes.join(" ")) : null,
    lanes(found, few),
    h("div", { class: "panels" },
      h("section", null, h("h2", null, "Where the time went"), scrolled("Stages", stageTable(found))),
      h("section", null, h("h2", null, "How busy each process was"), scrolled("Processes", busyTable(found)))));
}

// Select the tracks to draw when there are many: equally many of each process that has so many.
function someLanes(rows) {
  for (let most = MAX_ROWS; most > 0; most -= 1) {
    const seen = new Map();
    const few = rows.filter(({ row: [process] }) => {
      seen.set(process, (seen.get(process) || 0) + 1);
      return seen.get(process) <= most;
    });
    if (few.length <= MAX_ROWS) return few;
  }
  return rows.slice(0, MAX_ROWS);
}

function stageTable(found) {
  const rows = found.stages.map((stage) => [stage.name, `${stage.seconds.toFixed(3)} s`, percent(stage.seconds / found.seconds)]);
  return table("Stages of the driver", [{ title: "stage of the driver", text: true }, { title: "time" }, { title: "share of the step" }], [...rows, ["step", `${found.seconds.toFixed(3)} s`, percent(1)]]);
}

function busyTable(found) {
  return table("Processes", [{ title: "process", text: true }, { title: "busy, share of the step" }, { title: "spans" }], found.busy.map((one) => [one.process, percent(one.share), count(one.spans)]));
}

function lanes(found, rows) {
  const spans = found.spans;
  const rowAt = new Map(rows.map(({ index }, place) => [index, place]));
  const drawn = spans.row.map((row, span) => ({ place: rowAt.get(row), start: spans.start[span], end: spans.start[span] + spans.seconds[span], name: spans.name[span], chunks: spans.chunks[span] }))
    .filter((span) => span.place !== undefined);
  const xs = [...new Set(drawn.map((span) => span.start))].sort((a, b) => a - b);
  const isNarrow = innerWidth < 600;
  const words = rows.map(({ row: [process, lane, depth] }) => (depth ? "" : isNarrow ? process.replace("policy ", "") : `${process}, ${lane}`));
  const read = (index) => `${xs[index].toFixed(3)} s: ` + (drawn.filter((span) => span.start <= xs[index] && span.end > xs[index]).slice(0, 12)
    .map((span) => `${found.rows[rows[span.place].index][0]} ${found.names[span.name]} (${(span.end - span.start).toFixed(3)} s)`).join(", ") || "nothing");
  const columns = [{ title: "process", text: true }, { title: "lane", text: true }, { title: "what", text: true }, { title: "start, s" }, { title: "time, s" }, { title: "rollouts", text: true }];
  const values = () => table("Spans", columns, drawn.slice(0, 500).map((span) => {
    const [process, lane] = found.rows[rows[span.place].index];
    return [process, lane, found.names[span.name], span.start.toFixed(3), (span.end - span.start).toFixed(3), span.chunks.map((chunk) => found.chunks[chunk]).join(", ")];
  }));
  const processesOf = new Map();
  for (const span of drawn) {
    const kind = kindOf(found.names[span.name]);
    const process = processKind(found.rows[rows[span.place].index][0]);
    const processes = processesOf.get(kind) || [];
    if (!processes.includes(process)) processesOf.set(kind, [...processes, process]);
  }
  const marks = marksOf([...processesOf.keys()], processesOf);
  const markOf = (span) => marks.get(kindOf(found.names[span.name]));
  const title = `Step ${found.step}: ${found.seconds.toFixed(2)} s`;
  const label = `${title}. ${rows.length} lanes, ${drawn.length} spans. ${found.stages.slice(0, 4).map((stage) => `${stage.name} ${percent(stage.seconds / found.seconds, 0)}`).join(", ")}. Arrow keys go from span to span.`;
  const state = { marked: null };
  return figure({ title, text: "Drag to zoom, double-click to reset. Click a span to highlight its rollouts.", label, wide: true, height: LANE * rows.length + 62, read, values, head: marksLegend(marks, processesOf) },
    (plot, size, say) => {
      const chart = new uPlot({
        ...size,
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        legend: { show: false },
        scales: { x: { time: false, range: (self, low, high) => [low, high] }, y: { range: [0, rows.length] } },
        axes: axes("seconds since the step began", "", {
          xAxis: { values: (self, splits) => splits.map((value) => String(Number(value.toFixed(4)))) },
          yAxis: { label: null, labelSize: 0, size: isNarrow ? 84 : 170, splits: () => rows.map((row, place) => rows.length - place - 0.5), values: () => words, grid: { show: false }, ticks: { show: false } },
        }),
        series: [{}, { stroke: "transparent", points: { show: false } }],
        hooks: {
          draw: [(self) => drawSpans(self, rows.length, drawn, found.names, markOf, state.marked)],
          setCursor: [(self) => say(has(self.cursor.left) && self.cursor.left >= 0 ? self.cursor.idx : null)],
          ready: [(self) => self.over.addEventListener("click", (event) => { state.marked = spanAt(self, drawn, rows.length, event); self.redraw(); if (state.marked) tell(self, state.marked); })],
        },
      }, [[Math.min(0, ...xs), ...xs.filter((x) => x > Math.min(0, ...xs)), found.seconds].filter((x, index, all) => !index || x > all[index - 1]), []], plot);
      const tell = (self, span) => { const reading = plot.parentElement.querySelector(".reading"); reading.textContent = ""; add(reading, [`${found.rows[rows[span.place].index][0]}, ${found.names[span.name]}: ${(span.end - span.start).toFixed(3)} s from ${span.start.toFixed(3)} s${span.chunks.length ? `, rollouts ${span.chunks.map((chunk) => found.chunks[chunk]).join(", ")}` : ""}`]); };
      return chart;
    });
}

function spanAt(chart, drawn, num, event) {
  const box = chart.over.getBoundingClientRect();
  const at = chart.posToVal(event.clientX - box.left, "x");
  const place = Math.floor((event.clientY - box.top) / (box.height / num));
  return drawn.find((span) => span.place === place && span.start <= at && span.end >= at) || null;
}

// "engine 3" is an engine.
function processKind(process) {
  return process.replace(/ \d+$/, "");
}

// "mini-batch 2 of 4" is a mini-batch.
function kindOf(name) {
  return name.replace(/ \d+( of \d+)?$/, "");
}

function drawSpans(chart, num, drawn, names, markOf, marked) {
  const context = chart.ctx;
  const fillings = new Map();
  const words = styleValue("--text");
  const { left: edge, width } = chart.bbox;
  const rowHeight = chart.bbox.height / num;
  context.save();
  context.beginPath();
  context.rect(edge, chart.bbox.top, width, chart.bbox.height);
  context.clip();
  context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const span of drawn) {
    const left = chart.valToPos(span.start, "x", true);
    const right = Math.max(left + 1, chart.valToPos(span.end, "x", true));
    if (right < edge || left > edge + width) continue;
    const top = chart.bbox.top + rowHeight * span.place + 2;
    const isMarked = marked && (span === marked || span.chunks.some((chunk) => marked.chunks.includes(chunk)));
    context.globalAlpha = marked && !isMarked ? 0.25 : 1;
    const mark = markOf(span);
    if (!fillings.has(mark)) fillings.set(mark, filling(context, mark));
    context.fillStyle = fillings.get(mark)(left, top);
    context.fillRect(left, top, Math.max(1, right - left - 0.5), rowHeight - 4);
    const text = names[span.name];
    const textWidth = context.measureText(text).width + 8;
    const textLeft = Math.max(left, edge);
    if (textLeft + textWidth < right) {
      context.fillStyle = colour(mark.colour);
      context.fillRect(textLeft, top, textWidth, rowHeight - 4);
      context.fillStyle = marked && !isMarked ? words : inkOn(colour(mark.colour));
      context.globalAlpha = 1;
      context.fillText(text, textLeft + 4, top + (rowHeight - 4) / 2);
    }
  }
  context.restore();
}
