// Start the page: navigation by the address, the theme, and in watch mode the polling for news.

const LOOK_S = 4;
let shownAt = null;

let turn = Promise.resolve();

// Show one view after the other: data that arrives late must not be drawn into the next view.
function route() {
  turn = turn.then(showView);
  return turn;
}

async function showView() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const known = views.find(([view]) => view === name);
  const current = name === "group" ? "groups" : known ? name : "curves";
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  forgetCharts();
  const isNew = shownAt !== null && shownAt !== location.hash;
  shownAt = location.hash;
  try {
    if (name === "group") await showGroup(...rest.map(Number));
    else await views.find(([view]) => view === current)[2]();
  } catch (error) {
    fill(heading("This view cannot be shown"), h("p", { role: "alert" }, error.message));
  }
  main.dataset.view = location.hash.slice(1) || "curves";
  if (isNew) { scrollTo(0, 0); main.querySelector("h2")?.focus(); }
}

async function showState() {
  const { runs, written } = await load("overview");
  const now = Date.now() / 1000;
  const said = runs.map((run) => {
    const state = run.state;
    const words = {
      running: MODE === "watch" ? `runs: ${state.stage} ${state.detail}` : `ran when this was written: ${state.stage} ${state.detail}`,
      stalled: `is stalled in ${state.stage}; late: ${(state.late || []).join(", ") || "unknown"}`,
      ended: "has ended",
      silent: `has written no heartbeat for ${ago((MODE === "watch" ? now : written) - state.written_at)}; last: ${state.stage} ${state.detail}`,
      unknown: "",
    }[state.state];
    return words ? (runs.length > 1 ? `${run.name} ${words}` : `The run ${words}`) : "";
  }).filter(Boolean).join(" · ");
  const element = document.getElementById("state");
  element.textContent = "";
  add(element, [said]);
  const footer = document.getElementById("footer");
  footer.textContent = "";
  add(footer, [`${MODE === "watch" ? "Read" : "Written"} ${new Date(1000 * written).toISOString().slice(0, 16).replace("T", " ")} UTC from ${runs.map((run) => run.folder).join(", ")}. Charts: uPlot (MIT).`]);
}

async function lookForNews() {
  if (document.hidden) return;
  try {
    const stamp = await ask("stamp");
    if (lookForNews.last && lookForNews.last !== stamp.stamp) {
      loaded.clear();
      await showState();
      const view = location.hash.slice(1).split("/")[0] || "curves";
      const isTyping = main.contains(document.activeElement) && document.activeElement !== main && document.activeElement.tagName !== "H2";
      if (!isTyping && ["curves", "prompts", "compare"].includes(view)) await refresh();
    }
    lookForNews.last = stamp.stamp;
  } catch (error) {
    document.getElementById("state").textContent = "The server of this page does not answer: what is shown may be old.";
  }
}

async function refresh() {
  const top = scrollY;
  main.style.minHeight = `${main.clientHeight}px`;
  await route();
  scrollTo(0, top);
  main.style.minHeight = "";
}

for (const [name, title] of views) {
  const link = h("a", { href: `#${name}` }, title);
  link.dataset.view = name;
  document.getElementById("views").append(h("li", null, link));
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
addEventListener("hashchange", route);
async function start() {
  if (MODE === "watch") await lookForNews(); // before anything is read: what is written from now on is news
  await route();
  await showState();
  document.documentElement.dataset.ready = "yes";
  if (MODE === "watch") setInterval(lookForNews, 1000 * LOOK_S);
}

start();
