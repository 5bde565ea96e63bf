// Unpack the data and the charts' engine, draw, and say that all is drawn.

const DRAW = { curve: curveChart, matrix: matrixChart, timeline: timelineChart, history: historyChart,
  parallel: parallelChart, scatter: scatterChart, heatmap: heatChart, importance: importanceChart };

function scrollTo(section) {
  if (section) document.getElementById(section)?.scrollIntoView();
}

async function main() {
  const [text, engine] = await Promise.all([unpacked("data"), unpacked("engine")]);
  data = JSON.parse(text);
  rows = new Map(data.trials.rows.map((row) => [row.trial, row]));
  document.head.append(Object.assign(document.createElement("script"), { textContent: engine }));
  $("#data").remove();
  $("#engine").remove();
  START.log = steep(data.curves.charts[0]);
  state = readFragment();
  trialTable();
  curveTools();
  const figures = $$("figure[data-chart]");
  for (const figure of figures) figure.classList.add("drawn"); // at once: each change lays the page out anew
  for (const figure of figures) DRAW[figure.dataset.chart](figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((one) => one.draw()));
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
