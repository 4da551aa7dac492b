// Draw the views: curves, prompts, groups, one group, settings, comparison. Each is a function that fills `main`.

const main = document.getElementById("main");
const views = [
  ["curves", "Curves", showCurves],
  ["prompts", "Prompts", showPrompts],
  ["groups", "Groups", showGroups],
  ["timeline", "Timeline", showTimeline],
  ["settings", "Settings", showSettings],
  ["compare", "Comparison", showComparison],
];
const chosen = { run: 0, metric: null, panels: {}, filters: {}, sort: { key: "step", down: true }, page: 0, laneStep: null, process: "", different: null, search: "" };
const FATES = {
  trained: "trained on in this step", carried: "kept for a later step", all_correct: "dropped: every rollout was right", all_wrong: "dropped: every rollout was wrong",
  all_equal: "dropped: equal rewards", surplus: "dropped: the batch was full", timed_out: "withdrawn at a deadline", failed: "withdrawn: its verifier failed", dropped: "withdrawn: the batch was full",
};

function heading(text) {
  return h("h2", { tabindex: "-1" }, text);
}

function fill(...children) {
  forgetCharts();
  main.textContent = "";
  add(main, children);
  for (const element of main.querySelectorAll("figure")) drawWhenSeen(element);
}

function runChoice(runs, again) {
  if (runs.length < 2) return null;
  return field("Run", choice(runs.map((run, index) => [index, run.name]), chosen.run, (value) => { chosen.run = Number(value); chosen.page = 0; again(); }));
}

// ---------------------------------------------------------------------------------------------------------- curves

async function showCurves() {
  const overview = await load("overview");
  const runs = overview.runs;
  if (!runs.some((run) => run.steps.length)) return fill(heading("Curves"), h("p", null, "No step is written yet."));
  const panels = overview.panels.filter((panel) => panel.metrics.length > (panel.title === "Reward by task" ? 1 : 0)).map((panel) => curve(panel, overview));
  const bought = runs.map(() => h("div"));
  fill(heading("Curves"), runs.flatMap((run, index) => [h("p", { class: "story" }, story(run)), runs.length > 1 ? null : answers(run), bought[index], facts(run)]),
    h("p", { class: "soft" }, "± is one standard error. a … b is a 95 % interval, and so is a bar in a chart. A triangle at the edge of a chart marks a value outside it."),
    h("div", { class: "panels" }, panels), anyMetric(overview), runs.map((run) => events(run, runs.length > 1)), runs.map(evaluation));
  for (const [index, run] of runs.entries()) {
    const rates = await load(`newest/${index}`);
    if (rates && rates.steps.length) add(bought[index], [h("p", { class: "note" }, runs.length > 1 ? `${run.name}: ` : null, whatNBuys(rates))]);
  }
}

function known(run, name) {
  return (run.metrics[name] || []).map((value, index) => ({ value, index, step: run.steps[index] })).filter(({ value }) => has(value));
}

// What a run has reached, in words: the first of these that it has measured.
const MEASURES = [["validation/pass_at_1", "held-out pass@1", "share"], ["validation/reward", "held-out mean reward", ""], ["reward/mean", "mean reward of sampled rollouts", ""], ["sft/val_loss", "held-out loss", "nats"]];

// Return the run in sentences: from where to where, how long, and which weights are in hf/.
function story(run) {
  const { weights } = run;
  const [name, words, unit] = MEASURES.slice(weights && weights.measure === "mean reward" ? 1 : 0).find(([one]) => known(run, one).length) || [];
  const points = known(run, name);
  if (!points.length) return `${run.name} has no validation yet.`;
  const [from, to] = [points[0], points[points.length - 1]];
  const text = ({ value, index }) => withError(value, (errorsOf(run, name) || [])[index], unit, grainOf(intervalsOf(run, name)[index]) || noise(run.metrics[name]));
  const steps = run.steps[run.steps.length - 1];
  const ofAll = run.max_steps > steps ? ` of ${run.max_steps}` : "";
  const said = [from === to ? `${run.name}: ${words} ${text(to)} at step ${to.step}, after ${ago(run.seconds)}.`
    : `${run.name} went from ${text(from)} to ${text(to)} ${words} in ${steps}${ofAll} steps and ${ago(run.seconds)}${to.step < steps ? `, by its values at steps ${from.step} and ${to.step}` : ""}.`];
  if (!weights) said.push("The folder hf/ has no weights of a validation.");
  else {
    const value = (one) => withUnit(one, weights.measure === "pass@1" ? "share" : "", weights.standard_error / 10);
    if (weights.is_base_better) said.push(`The base was better than every validated step: ${value(weights.base_value)}, and ${value(weights.value)} at step ${weights.step}, whose weights are in hf/.`);
    else said.push(weights.step === to.step ? `The folder hf/ has the weights of step ${weights.step}.` : `The folder hf/ has the weights of step ${weights.step}, the best validation: ${value(weights.value)}.`);
  }
  return said.join(" ");
}

// Show one held-out question with the responses of the first and the last validation.
function answers(run) {
  if (!run.answers) return null;
  const side = (one) => h("div", { class: "message" }, h("p", { class: "soft" }, one.step ? `After step ${one.step} ` : "Before training ", h("span", { class: `tag ${one.is_right ? "right" : "wrong"}` }, one.is_right ? "✓ right" : `✗ reward ${number(one.reward)}`)), said(`Response of step ${one.step}`, one.response));
  return h("section", { class: "answers", "aria-label": "A held-out question before and after" }, said("Held-out question", run.answers[0].question), run.answers.map(side));
}

function facts(run) {
  const last = (name, unit = "") => { const points = known(run, name); return points.length ? withUnit(points[points.length - 1].value, unit, noise(run.metrics[name])) : "–"; };
  const tokens = known(run, "rollouts/generated_tokens").pop();
  const passed = intervalsOf(run, "validation/pass_at_1").filter(has);
  const cards = [
    ["step", `${run.steps[run.steps.length - 1] ?? "–"}${run.max_steps ? ` of ${run.max_steps}` : ""}`],
    ["held-out pass@1, 95 % interval", interval(passed[passed.length - 1])],
    ["mean reward", last("reward/mean")],
    ["informative groups", last("dynamic_sampling/keep_rate", "share")],
    ["rollouts per group", last("rollouts/group_size")],
    ["response tokens sampled", tokens ? axisText(tokens.value) : "–"],
    ["truncated responses", last("rollouts/truncated", "share")],
    ["unsampled mass", last("mass_balance/unsampled_mass", "share")],
  ];
  return h("section", { "aria-label": `Figures of ${plain(run.name)}` }, h("div", { class: "cards" }, cards.map(([name, value]) => h("div", { class: "card" }, h("b", null, value), h("small", null, name)))));
}

// With one run draw a line for each metric of the panel, with several a line for each run, of a chosen metric.
function curve(panel, overview) {
  const runs = overview.runs;
  const unit = unitOf(panel.metrics[0], overview);
  if (runs.length === 1) {
    const [run] = runs;
    const series = panel.metrics.map((name, index) => ({ label: panel.words[index], values: run.metrics[name], errors: errorsOf(run, name), intervals: run.intervals[name] }));
    return lines({ ...panel, unit, xs: run.steps, series });
  }
  const name = chosen.panels[panel.title] || panel.metrics[panel.title.startsWith("pass@k") ? panel.metrics.length - 1 : 0];
  const head = panel.metrics.length > 1 ? choice(panel.metrics.map((metric, index) => [metric, panel.words[index]]), name, (value) => { chosen.panels[panel.title] = value; showCurves(); }) : null;
  if (head) head.setAttribute("aria-label", `Metric of ${panel.title}`);
  return lines({ ...panel, unit, head, ...ofRuns(runs, name) });
}

function ofRuns(runs, name) {
  const xs = [...new Set(runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
  const series = runs.map((run) => {
    const at = new Map(run.steps.map((step, index) => [step, index]));
    const pick = (values) => xs.map((x) => (at.has(x) && values ? values[at.get(x)] ?? null : null));
    return { label: run.name, values: pick(run.metrics[name]), errors: pick(errorsOf(run, name)), intervals: pick(run.intervals[name]) };
  });
  return { xs, series };
}

// Return the standard errors of a metric, or nothing.
function errorsOf(run, name) {
  return run.metrics[`${name}_standard_error`] || run.metrics[`${name}_error`];
}

const intervalsOf = (run, name) => run.intervals[name] || [];

function unitOf(name, overview) {
  return (overview.meanings[name] || [""])[0];
}

function anyMetric(overview) {
  const names = [...new Set(overview.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
  const name = chosen.metric && names.includes(chosen.metric) ? chosen.metric : names.find((one) => one === "policy/loss") || names[0];
  const [unit, aggregation, meaning] = overview.meanings[name] || ["", "", "a metric of your own"];
  const select = choice(names.map((one) => [one, one]), name, (value) => { chosen.metric = value; showCurves().then(() => document.getElementById("any-metric").focus()); });
  select.id = "any-metric";
  const text = `${meaning}${aggregation ? `; ${aggregation}` : ""}.`;
  return h("section", null, h("h2", null, "Any metric"), field("Metric", select), lines({ title: name, text, unit, wide: true, ...ofRuns(overview.runs, name) }));
}

function events(run, isNamed) {
  if (!run.events.length) return null;
  const rows = run.events.map((event) => [String(event.step), event.event, event.reason, number(event.value)]);
  const columns = [{ title: "step" }, { title: "event", text: true }, { title: "reason", text: true }, { title: "value" }];
  return h("section", null, h("h2", null, isNamed ? `Events of ${run.name}` : "Events"), scrolled("Events", table("Events", columns, rows)));
}

function evaluation(run) {
  if (!run.evaluation) return null;
  const rows = Object.entries(run.evaluation.scores).map(([name, score]) => [name, count(score.num_prompts), has(score.num_samples) ? count(score.num_samples) : "differ", withUnit(score.pass_at_1, "share", grainOf(score.interval)),
    interval(score.interval), ...lastOf(score.pass_at_k), ...lastOf(score.majority_at_k), `${number(score.response_tokens)}`, percent(score.truncated)]);
  const columns = ["benchmark", "prompts", "samples each", "pass@1", `${percent(run.evaluation.confidence, 0)} interval`, "pass@k", "majority@k", "tokens", "cut"].map((title, index) => ({ title, text: !index }));
  return h("section", null, h("h2", null, `Evaluation of ${run.evaluation.model}`), scrolled("Evaluation", table("Evaluation", columns, rows)));
}

function interval(ends) {
  if (!grainOf(ends)) return "–";
  const [low, high] = ends.map((end) => withUnit(end, "share", grainOf(ends)));
  return `${low.slice(0, -2)} … ${high}`;
}

function lastOf(byK) {
  const ks = Object.keys(byK || {});
  return [ks.length ? `${percent(byK[ks[ks.length - 1]].value)} (k = ${ks[ks.length - 1]})` : "–"];
}

// ---------------------------------------------------------------------------------------------------------- prompts

async function showPrompts() {
  const { runs } = await load("overview");
  const rates = await load(`rates/${chosen.run}`);
  const top = [heading("Prompts"), h("div", { class: "filters" }, runChoice(runs, showPrompts))];
  if (!rates || !rates.steps.length) return fill(top, h("p", null, "This run keeps no rollouts (store.enabled), or no step is finished."));
  const edges = rates.edges.map((edge) => `${Number((100 * edge).toFixed(1))}`);
  const rows = ["none", `under ${edges[0]} %`, ...edges.slice(1).map((edge, index) => `${edges[index]}–${edge} %`), `over ${edges[edges.length - 1]} %`, "all"];
  const at = [...new Set([0, Math.floor((rates.steps.length - 1) / 2), rates.steps.length - 1])];
  fill(top,
    heatMap({ title: "Success rate of prompts over steps", text: "Share of the prompts sampled in a step, by how many of their rollouts are right. Prompts at the bottom and at the top teach nothing; those just above the bottom are what a larger N adds.",
      xs: rates.steps, rows, shares: rates.shares, unitText: "share of prompts" }),
    h("p", { class: "note" }, whatNBuys(rates)),
    h("div", { class: "panels" },
      bySize("Informative prompts by rollouts per prompt", "Share of prompts that would have had right and wrong rollouts, had each got N of those drawn. Unbiased.", rates, rates.informative, at),
      bySize("pass@k by k", "Chance that one of k rollouts is right. Unbiased.", rates, rates.pass_at, at)));
}

function whatNBuys(rates) {
  const newest = rates.informative[rates.informative.length - 1];
  const sizes = Object.keys(newest).map(Number).filter((size) => size > 1);
  if (sizes.length < 2) return "Groups of this run are too small to say what a smaller N would have given.";
  const most = sizes[sizes.length - 1];
  const few = sizes.find((size) => size >= most / 4);
  const fewest = sizes.find((size) => size >= most / 16);
  const other = fewest < few ? ` and ${percent(newest[fewest], 0)} with N = ${fewest}` : "";
  return `What N buys: ${percent(newest[most], 0)} of the prompts of step ${rates.steps[rates.steps.length - 1]} are informative with N = ${most}. It would be ${percent(newest[few], 0)} with N = ${few}${other}.`;
}

function bySize(title, text, rates, bySteps, at) {
  const sizes = [...new Set(at.flatMap((index) => Object.keys(bySteps[index]).map(Number)))].sort((a, b) => a - b);
  const series = at.map((index) => ({ label: `step ${rates.steps[index]}`, values: sizes.map((size) => bySteps[index][size] ?? null) }));
  return lines({ title, text, xs: sizes, xTitle: "rollouts per prompt", xLog: true, unit: "share", series });
}

// ---------------------------------------------------------------------------------------------------------- groups

const GROUP_COLUMNS = [
  ["step", "step"], ["uid", "prompt", true], ["rate", "right"], ["size", "rollouts"], ["fate", "what became of it", true], ["task", "task", true], ["reward", "mean reward"], ["tokens", "tokens, mean"], ["cut", "cut at the limit"],
];
const PAGE = 50;

async function showGroups() {
  const { runs } = await load("overview");
  const part = await load(`groups/${chosen.run}`);
  const top = [heading("Groups"), h("p", null, "A row for every group of rollouts of the store: a prompt and what its N rollouts earned.")];
  if (!part || !part.rows.step.length) return fill(top, h("div", { class: "filters" }, runChoice(runs, showGroups)), h("p", null, "This run keeps no rollouts (store.enabled), or no step is finished."));
  const all = unpackRows(part);
  const body = h("div");
  const again = () => fillGroups(body, all);
  fill(top, whatIsHere(part, all), groupFilters(part, runs, again), body);
  again();
}

function unpackRows(part) {
  const rows = part.rows;
  return rows.step.map((step, index) => ({
    step, row: rows.row[index], uid: rows.uid[index], task: part.lists.task[rows.task[index]], fate: part.lists.fate[rows.fate[index]], origin: part.lists.origin[rows.origin[index]],
    size: rows.size[index], right: rows.right[index], rate: rows.right[index] / rows.size[index], failed: rows.failed[index], reward: rows.reward[index], tokens: rows.tokens[index], cut: rows.cut[index],
    hasText: holds(`group/${chosen.run}/${step}/${rows.row[index]}`),
  }));
}

function whatIsHere(part, all) {
  const said = [];
  if (all.length < part.num_all) said.push(`The table has the newest ${count(all.length)} of ${count(part.num_all)} groups, from step ${part.first_step} on.`);
  if (MODE === "report") said.push(`Responses of ${count(all.filter((row) => row.hasText).length)} of ${count(all.length)} groups are in this file, up to 12 each; brorl watch shows all of them.`);
  for (const [step, why] of Object.entries(part.unreadable || {})) said.push(`Step ${step} cannot be read: ${why}.`);
  return said.length ? h("p", { class: "note" }, said.join(" ")) : null;
}

function groupFilters(part, runs, again) {
  const filters = chosen.filters;
  const set = (key) => (value) => { filters[key] = value; chosen.page = 0; again(); };
  const typed = (key, type, more) => h("input", { type, value: filters[key] ?? "", oninput: (event) => set(key)(event.target.value), ...more });
  const some = (key, names, words) => choice([["", "all"], ...names.map((name) => [name, words ? words(name) : name])], filters[key] ?? "", set(key));
  return h("form", { class: "filters", role: "search", "aria-label": "Filters of groups", onsubmit: (event) => event.preventDefault() },
    runChoice(runs, showGroups),
    field("Prompt or task contains", typed("text", "search")),
    part.lists.task.length > 1 ? field("Task", some("task", part.lists.task)) : null,
    field("What became of it", some("fate", part.lists.fate, (name) => `${name}${FATES[name] ? `: ${FATES[name]}` : ""}`)),
    field("From step", typed("from", "number", { min: 0 })), field("To step", typed("to", "number", { min: 0 })),
    field("Right, at least %", typed("low", "number", { min: 0, max: 100 })), field("Right, at most %", typed("high", "number", { min: 0, max: 100 })),
    MODE === "report" ? checkBox("with responses in this file", Boolean(filters.hasText), set("hasText")) : null,
    h("button", { type: "button", onclick: () => { chosen.filters = {}; chosen.page = 0; showGroups(); } }, "Clear"));
}

function passes(row, filters) {
  const text = (filters.text || "").toLowerCase();
  const limit = (value) => (value === undefined || value === "" ? null : Number(value));
  return (!text || row.uid.toLowerCase().includes(text) || row.task.toLowerCase().includes(text)) && (!filters.task || row.task === filters.task) && (!filters.fate || row.fate === filters.fate)
    && !(row.step < limit(filters.from)) && !(has(limit(filters.to)) && row.step > limit(filters.to)) && !(100 * row.rate < limit(filters.low))
    && !(has(limit(filters.high)) && 100 * row.rate > limit(filters.high)) && (!filters.hasText || row.hasText);
}

function fillGroups(body, all) {
  const found = all.filter((row) => passes(row, chosen.filters));
  const { key, down } = chosen.sort;
  const order = (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0);
  found.sort((a, b) => (down ? -order(a, b) : order(a, b)));
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  chosen.page = Math.min(chosen.page, pages - 1);
  const start = chosen.page * PAGE;
  const rows = found.slice(start, start + PAGE);
  const columns = GROUP_COLUMNS.map(([name, title, text]) => ({ title, text }));
  const head = GROUP_COLUMNS.map(([name, title, text]) => h("th", { scope: "col", class: text ? "text" : null, "aria-sort": name === key ? (down ? "descending" : "ascending") : null },
    h("button", { type: "button", onclick: () => { chosen.sort = { key: name, down: name === key ? !down : name !== "uid" && name !== "task" }; fillGroups(body, all); body.querySelector(`th[aria-sort] button`).focus(); } },
      title, name === key ? (down ? " ▾" : " ▴") : "")));
  const lines = rows.map((row) => tableRow(columns, [String(row.step), groupLink(row), rightBar(row), String(row.size), h("span", { title: FATES[row.fate] }, row.fate), row.task, number(row.reward), number(row.tokens), String(row.cut)]));
  body.textContent = "";
  const turn = (to) => { chosen.page = to; fillGroups(body, all); body.querySelector(".scroll").focus(); };
  add(body, [
    h("p", { class: "soft", role: "status" }, found.length ? `${count(found.length)} groups, ${start + 1} to ${start + rows.length} shown` : "No group passes these filters."),
    scrolled("Groups", h("table", { "aria-label": "Groups" }, h("thead", null, h("tr", null, head)), h("tbody", null, lines))),
    h("div", { class: "filters" }, h("button", { type: "button", disabled: chosen.page === 0, onclick: () => turn(chosen.page - 1) }, "Previous"), `page ${chosen.page + 1} of ${pages}`,
      h("button", { type: "button", disabled: chosen.page >= pages - 1, onclick: () => turn(chosen.page + 1) }, "Next")),
  ]);
}

function groupLink(row) {
  if (!row.hasText) return h("span", null, row.uid);
  return h("a", { href: `#group/${chosen.run}/${row.step}/${row.row}` }, row.uid);
}

function rightBar(row) {
  return h("span", null, h("span", { class: "bar", "aria-hidden": "true" }, h("span", { style: { width: `${100 * row.rate}%` } })), h("span", { class: "count" }, `${row.right} (${percent(row.rate, 0)})`));
}

// ---------------------------------------------------------------------------------------------------------- one group

async function showGroup(run, step, row) {
  const group = await load(`group/${run}/${step}/${row}`);
  const back = h("p", null, h("a", { href: "#groups" }, "← All groups"));
  if (!group) return fill(heading("Group"), back, h("p", null, "This group is not in this file."));
  const columns = group.columns;
  const right = columns.reward.filter((reward) => reward >= group.lowest_right).length;
  const list = h("div");
  const places = Object.keys(group.responses).map(Number);
  const opened = new Map(places.map((place) => [place, group.responses[place]]));
  const again = () => { list.textContent = ""; add(list, [...opened.keys()].sort((a, b) => a - b).map((place) => response(group, place, opened.get(place)))); };
  const open = async (place) => {
    if (!opened.has(place) && MODE === "watch") { opened.set(place, await load(`response/${run}/${step}/${row}/${place}`)); again(); }
    const element = document.getElementById(`response-${place}`);
    if (element) { element.scrollIntoView({ block: "nearest" }); element.focus(); }
  };
  again();
  fill(heading(`Group ${group.uid}`), back,
    h("div", { class: "cards" }, [[`${right} of ${columns.reward.length}`, "rollouts right"], [group.fate, FATES[group.fate] || "what became of it"], [group.task, "task"], [String(step), "step"],
      [group.version === group.newest_version ? String(group.version) : `${group.version} to ${group.newest_version}`, "policy version"], [group.verifier, "verifier"],
      [`T ${number(group.sampling[0])}, p ${number(group.sampling[1])}`, `sampling; at most ${count(group.sampling[2])} tokens`]].map(([value, name]) => h("div", { class: "card" }, h("b", null, value), h("small", null, name)))),
    group.num_failed ? h("p", { class: "note" }, `The verifier failed on ${group.num_failed} more rollouts, which the group lacks.`) : null,
    h("h2", null, "Prompt"), group.messages.map((message) => h("div", { class: "message" }, h("p", { class: "soft" }, message.role), said(`Message of ${message.role}`, message.content))),
    h("details", null, h("summary", null, "What the verifier was given"), scrolled("Payload", table("Payload", [{ title: "key", text: true }, { title: "value", text: true }], Object.entries(group.payload)))),
    h("h2", null, "Rollouts"),
    h("p", { class: "soft" }, `Green: right; yellow: part of the reward; red: wrong. ${MODE === "watch" ? "A click opens a response." : `A frame: its response is in this file (${places.length} of ${columns.reward.length}).`}`),
    rolloutGrid(group, opened, open), rolloutTable(group),
    h("h2", null, "Responses"), logProbLegend(), list);
}

function said(label, text) {
  return h("div", { class: "said", tabindex: "0", role: "region", "aria-label": label, dir: "auto" }, text);
}

function rolloutGrid(group, opened, open) {
  let entry = null; // the one that Tab comes to; arrow keys go on from there
  const cells = group.columns.reward.map((reward, place) => {
    const has = opened.has(place) || MODE === "watch";
    const kind = reward >= group.lowest_right ? "is-right" : reward > 0 ? "is-part" : "";
    if (has && entry === null) entry = place;
    return h("button", { type: "button", tabindex: place === entry ? "0" : "-1", class: `${kind} ${opened.has(place) ? "has-text" : ""}`, disabled: !has, title: `rollout ${place}: reward ${number(reward)}, ${group.columns.num_tokens[place]} tokens`,
      "aria-label": `rollout ${place}, reward ${number(reward)}`, onclick: () => open(place) });
  });
  const move = (event) => {
    const enabled = cells.filter((cell) => !cell.disabled);
    const at = enabled.indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: enabled.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const next = enabled[Math.min(enabled.length - 1, Math.max(0, to))];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  return h("div", { class: "grid", role: "toolbar", "aria-label": "Rollouts of the group, left and right go through them", onkeydown: move }, cells);
}

function rolloutTable(group) {
  const names = [["place", "rollout"], ["reward", "reward"], ["shaped_reward", "shaped"], ["advantage", "advantage"], ["is_trained", "learnt from"], ["num_tokens", "tokens"], ["is_stopped", "ended by itself"],
    ["mean_log_prob", "mean log-prob, nats"], ["repetition", "repetition"], ["engine", "engine"], ["version", "version"]];
  if (group.columns.reason.length) names.push(["reason", "the verifier says", true]);
  const cell = (value) => (value === true ? "yes" : value === false ? "no" : number(value));
  const details = h("details", null, h("summary", null, `Table of ${group.columns.place.length} rollouts`));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const rows = group.columns.place.map((_, index) => names.map(([name, , text]) => (text ? group.columns[name][index] : cell(group.columns[name][index]))));
    details.append(scrolled("Rollouts", table("Rollouts", names.map(([, title, text]) => ({ title, text })), rows)));
  });
  return details;
}

const LIMITS = [-0.3, -1, -2, -3.5, -5];

function unlikely(logProb) {
  if (!has(logProb)) return 0;
  return LIMITS.filter((limit) => logProb < limit).length;
}

function logProbLegend() {
  return h("p", { class: "legend" }, "log-prob of a token when it was sampled, nats:", LIMITS.map((limit, index) => h("span", null, h("span", { class: `u${index + 1}` }, `below ${limit}`))), h("span", null, h("span", { class: "observed" }, "said by an environment")));
}

function response(group, place, found) {
  const columns = group.columns;
  const reward = columns.reward[place];
  const kind = reward >= group.lowest_right ? ["right", "✓ right"] : reward > 0 ? ["part", "~ in part"] : ["wrong", "✗ wrong"];
  const advantage = columns.advantage[place];
  const fact = [`reward ${number(reward)}`, has(columns.shaped_reward[place]) && columns.shaped_reward[place] !== reward ? `shaped ${number(columns.shaped_reward[place])}` : null,
    has(advantage) ? `advantage ${number(advantage)}` : "not trained on", `${count(columns.num_tokens[place])} tokens`, columns.is_stopped[place] ? null : "cut at the limit",
    `mean log-prob ${number(columns.mean_log_prob[place])} nats`, columns.repetition[place] ? `repetition ${percent(columns.repetition[place])}` : null, `engine ${columns.engine[place]}`];
  const verdict = has(found.answer) ? `answer read: ${found.answer}${reward < group.lowest_right && has(group.expected) ? `, right: ${group.expected}` : ""}` : null;
  const reason = found.reason ? `verifier: ${found.reason}` : null;
  const turns = (found.turns || []).map((turn) => `${number(turn.reward)}${turn.is_error ? " (wrong tool call)" : ""}`);
  if (turns.length) fact.push(`rewards of ${turns.length} turns: ${turns.join(", ")}`);
  const logProbs = found.log_probs || [];
  const text = h("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Response ${place}`, dir: "auto" });
  found.pieces.forEach((piece, index) => {
    if (found.left_out && index === found.cut_at) text.append(h("span", { class: "gap" }, `… ${count(found.left_out)} tokens are left out here …`));
    const level = unlikely(logProbs[index]);
    if (level) text.append(h("span", { class: `u${level}`, title: `${logProbs[index]} nats` }, piece));
    else text.append(index in logProbs && !has(logProbs[index]) ? h("span", { class: "observed", title: "written by the environment" }, piece) : shown(piece));
  });
  return h("article", { class: "response", id: `response-${place}`, tabindex: "-1", "aria-label": `Rollout ${place}` },
    h("div", { class: "facts" }, h("b", null, `rollout ${place}`), h("span", { class: `tag ${kind[0]}` }, kind[1]), fact.filter(Boolean).map((one) => h("span", null, one)), verdict ? h("span", null, verdict) : null, reason ? h("span", null, reason) : null),
    text, leastLikely(found));
}

function leastLikely(found) {
  const places = (found.log_probs || []).map((value, index) => [value, index]).filter(([value]) => has(value) && value < LIMITS[0]).sort((a, b) => a[0] - b[0]).slice(0, 10);
  if (!places.length) return null;
  const rows = places.map(([value, index]) => [String(index), found.pieces[index], value.toFixed(2)]);
  const columns = [{ title: "place" }, { title: "text", text: true }, { title: "log-prob, nats" }];
  return h("details", { class: "facts" }, h("summary", null, `Least likely tokens (${places.length})`), table("Least likely tokens", columns, rows));
}

// ---------------------------------------------------------------------------------------------------------- settings

async function showSettings() {
  const part = await load("settings");
  const several = part.runs.length > 1;
  if (chosen.different === null) chosen.different = true;
  const body = h("div");
  const differs = (row) => (several ? new Set(row.values).size > 1 : row.values[0] !== row.default);
  const again = () => {
    const text = chosen.search.toLowerCase();
    const found = part.rows.filter((row) => (!chosen.different || differs(row)) && (!text || `${row.name} ${row.meaning} ${row.values.join(" ")}`.toLowerCase().includes(text)));
    const columns = [{ title: "setting", text: true }, ...part.runs.map((name) => ({ title: several ? name : "value", text: true })), { title: "default", text: true }, { title: "meaning", text: true }];
    const rows = found.map((row) => tableRow(columns, [row.name, ...row.values.map((value) => value ?? "–"), row.default ?? "–", row.meaning], { class: differs(row) && !chosen.different ? "changed" : null }));
    for (const row of rows) {
      row.firstChild.classList.add("name");
      row.firstChild.replaceChildren(...row.firstChild.textContent.split(/(?<=[._])/).flatMap((part) => [part, h("wbr")]));
    }
    const empty = table("Settings", columns, []);
    empty.querySelector("tbody").append(...rows);
    body.textContent = "";
    add(body, [h("p", { class: "soft", role: "status" }, `${found.length} of ${part.rows.length} settings`), scrolled("Settings", empty)]);
  };
  const only = checkBox(several ? "only where the runs differ" : "only what is not the default", chosen.different, (isChecked) => { chosen.different = isChecked; again(); });
  fill(heading("Settings"), h("p", null, part.runs.map((name, index) => `${several ? `${name}: ` : ""}code revision ${part.revisions[index]}`).join("; ")),
    h("form", { class: "filters", role: "search", "aria-label": "Filters of settings", onsubmit: (event) => event.preventDefault() },
      field("Name, value or meaning contains", h("input", { type: "search", value: chosen.search, oninput: (event) => { chosen.search = event.target.value; again(); } })),
      only), body);
  again();
}

// ---------------------------------------------------------------------------------------------------------- comparison

async function showComparison() {
  const part = await load("comparison");
  if (!part || !part.rows.length) return fill(heading("Comparison"), h("p", null, "There is one run here. brorl report RUN RUN … compares several."));
  const columns = ["run", "step", "held-out pass@1", "95 % interval", `minus ${part.rows[0].name}`, "95 % interval", "best pass@1", "at step", "rollouts sampled", "response tokens sampled", "time of these steps"].map((title, index) => ({ title, text: !index }));
  const rows = part.rows.map((row) => [row.name, String(row.step), withUnit(row.value, "share", grainOf(row.interval)), interval(row.interval), has(row.difference) ? points(row.difference, grainOf(row.difference_interval)) : "–", pointsInterval(row.difference_interval),
    withUnit(row.best, "share", grainOf(row.interval)), String(row.best_step), has(row.rollouts) ? count(row.rollouts) : "–", has(row.tokens) ? count(row.tokens) : "–", has(row.seconds) ? ago(row.seconds) : "–"]);
  const { runs } = await load("overview");
  fill(heading("Comparison"), h("p", null, part.text), scrolled("Comparison", table("Comparison", columns, rows)),
    lines({ title: "Held-out pass@1", text: "Bars: 95 % interval over questions.", wide: true, unit: "share", ...ofRuns(runs, "validation/pass_at_1") }),
    part.paired.length ? [h("h2", null, "Evaluations, paired"), scrolled("Paired", pairedTable(part.paired))] : null,
    h("p", null, "Settings in which the runs differ are in ", h("a", { href: "#settings" }, "Settings"), "."));
}

const points = (value, grain) => `${value >= 0 ? "+" : "−"}${withUnit(Math.abs(value), "share", grain).slice(0, -2)} points`;

function pointsInterval(ends) {
  return ends ? `${points(ends[0], grainOf(ends)).replace(" points", "")} … ${points(ends[1], grainOf(ends))}` : "–";
}

function pairedTable(paired) {
  const columns = ["benchmark", "run", "against", "prompts", "difference", "95 % interval", "p"].map((title, index) => ({ title, text: index < 3 }));
  return table("Paired evaluations", columns, paired.map((one) => [one.benchmark, one.name, one.other, count(one.num_prompts), points(one.difference, grainOf(one.interval)), pointsInterval(one.interval), one.p < 0.001 ? "< 0.001" : number(one.p)]));
}
