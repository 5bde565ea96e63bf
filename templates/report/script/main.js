// Unpack the data and the charts' engine, draw, and say that all is drawn.

const DRAW = { curve: curveChart, matrix: matrixChart, timeline: timelineChart, history: historyChart,
  parallel: parallelChart, scatter: scatterChart, heatmap: heatChart, importance: importanceChart };

function scrollTo(section) {
  if (section) document.getElementById(section)?.scrollIntoView();
}

// Resolved once the page has answered what a user did meanwhile.
const answered = () => new Promise((next) => setTimeout(next));

async function main() {
  const unpacking = unpacked("engine");
  data = JSON.parse(await unpacked("data"));
  rows = new Map(data.trials.rows.map((row) => [row.trial, row]));
  state = readFragment();
  trialTable();
  curveTools();
  await answered();
  document.head.append(Object.assign(document.createElement("script"), { textContent: await unpacking }));
  $("#data").remove();
  $("#engine").remove();
  const figures = $$("figure[data-chart]");
  for (const figure of figures) figure.classList.add("drawn"); // at once: each change lays the page out anew
  for (const figure of figures) DRAW[figure.dataset.chart](figure);
  for (const media of ["print", "(prefers-color-scheme: dark)"]) {
    matchMedia(media).addEventListener("change", () => charts.forEach((one) => one.draw()));
  }
  addEventListener("hashchange", () => {
    const given = readFragment();
    const bare = !location.hash.includes("?");
    change(bare ? { section: given.section } : given);
    scrollTo(given.section);
  });
  scrollTo(state.section);
  document.body.dataset.ready = "";
}

main();
