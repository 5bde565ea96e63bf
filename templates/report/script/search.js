// The search: best so far, parallel coordinates, scatter, heat map, importance.

const ranked = () => data.trials.rows.filter((row) => typeof row.best === "number");
const shade = () => [colour("high"), colour("low")];

function historyChart(figure) {
  const points = data.search.history;
  const log = spread(points.map((one) => one.value));
  // a series of lines would leave out steps of a pixel or two, and be slanted there
  const stairs = (_, api) => ({ type: "polyline", style: { stroke: colour("front"), lineWidth: 2, fill: "none" }, shape: {
    points: points.flatMap((one, n) => [[one.n, points[Math.max(0, n - 1)].best], [one.n, one.best]]).map((at) => api.coord(at)) } });
  chart(figure, ["pick"], () => ({
    grid: { left: 8, right: 16, top: 44, bottom: 40, containLabel: true },
    legend: { top: 0, selectedMode: false, textStyle: { color: colour("ink") },
      data: [{ name: "trials" }, { name: "best so far", icon: "path://M0,0H28V2H0Z" }] },
    xAxis: axis("value", "trials ended", { minInterval: 1, max: "dataMax" }),
    yAxis: axis(log ? "log" : "value", data.search.metric, { nameLocation: "end", nameGap: 8, nameTextStyle: { color: colour("faint"), align: "left" } }),
    tooltip: { ...base().tooltip, formatter: (at) => `trial ${points[at.dataIndex].trial}\n${data.search.metric}: ${short(at.value[1])}` },
    series: [
      { type: "scatter", name: "trials", data: points.map((one) => [one.n, one.value]), symbolSize: 5, itemStyle: { color: colour("s8"), opacity: points.length > 300 ? 0.5 : 1 } },
      { type: "custom", name: "best so far", z: 3, silent: true, clip: true, data: [[points.at(-1).n, points.at(-1).best]], itemStyle: { color: colour("front") }, renderItem: stairs },
    ],
  })).on("click", (at) => at.seriesName === "trials" && toggle(points[at.dataIndex].trial));
}

function place(row, one) {
  if (one.kind === "category") {
    const at = one.values.indexOf(category(row, one));
    return at < 0 ? "-" : at;
  }
  const value = row.hyperparameters[one.name];
  return typeof value === "number" ? value : "-";
}

function parallelChart(figure) {
  const { axes, metric, smaller_is_better: smaller } = data.trials;
  const log = spread(ranked().map((row) => row.best));
  const ids = [...axes.map((one) => one.name), METRIC];
  let telling = false;
  // a name that is wider than its room goes on below
  const folded = (name) => (6 * name.length > (narrow() ? 66 : $(".plot", figure).clientWidth / ids.length) ? name.replace(/_(?=[^_]*$)/, "_\n") : name);
  const narrow = () => $(".plot", figure).clientWidth < 60 * ids.length;
  const drawn = chart(figure, ["q", "states", "pick", "brush"], () => {
    const label = (n) => ({ color: colour("ink"), fontSize: 11, hideOverlap: true, textBorderColor: colour("paper"), textBorderWidth: 3, formatter: n === ids.length - 1 || axes[n].kind !== "category"
      ? short : (at) => (String(axes[n].values[at] ?? at).slice(0, 14)) });
    const common = (n) => ({ dim: n, id: `axis-${n}`, nameTextStyle: { color: colour("ink"), fontSize: 11, lineHeight: 13 }, axisLabel: label(n),
      axisLine: { lineStyle: { color: colour("faint") } }, axisTick: { lineStyle: { color: colour("faint") } },
      areaSelectStyle: { width: 16, color: colour("ink"), opacity: 0.2, borderColor: colour("ink") },
      nameTruncate: { maxWidth: narrow() ? 84 : Math.max(56, $(".plot", figure).clientWidth / ids.length - 8) }, nameLocation: "end" });
    const chosen = filtered().filter((row) => typeof row.best === "number");
    const marks = (row) => ({ value: [...axes.map((one) => place(row, one)), row.best, row.rank], name: String(row.trial),
      lineStyle: state.pick.includes(row.trial) ? { width: 4, opacity: 1 } : {} });
    const opacity = Math.max(0.1, Math.min(0.8, 200 / chosen.length));
    return {
      parallel: { left: 44, right: narrow() ? 88 : 60, top: narrow() ? 20 : 44, bottom: 20, layout: narrow() ? "vertical" : "horizontal", parallelAxisDefault: { realtime: false } },
      parallelAxis: [
        ...axes.map((one, n) => ({ ...common(n), name: folded(one.name), scale: true,
          type: one.kind === "log" ? "log" : "value",
          ...(one.kind === "category" ? { min: 0, max: Math.max(1, one.values.length - 1), interval: 1 } : {}) })),
        { ...common(axes.length), name: folded(metric), type: log ? "log" : "value", scale: true, inverse: smaller, nameLocation: smaller ? "start" : "end" },
      ],
      visualMap: { show: false, dimension: ids.length, min: 1, max: Math.max(2, ranked().length), inRange: { color: shade() } },
      series: [{ type: "parallel", data: chosen.reverse().map(marks), lineStyle: { width: chosen.length > 300 ? 1 : 1.75, opacity },
        inactiveOpacity: 0.04, activeOpacity: Math.max(0.3, opacity), progressive: 0, smooth: false }],
      tooltip: { show: false },
    };
  }, tell);

  function tell(on) {
    telling = true;
    ids.forEach((name, n) => {
      let bounds = state.brush[name];
      if (bounds === undefined) return;
      if (typeof bounds === "string") {
        const at = axes[n].values.indexOf(bounds);
        bounds = [[at - 0.3, at + 0.3]];
      }
      on.dispatchAction({ type: "axisAreaSelect", parallelAxisId: `axis-${n}`, intervals: bounds });
    });
    telling = false;
  }

  drawn.on("axisareaselected", (event) => {
    if (telling) return;
    const n = Number(String(event.parallelAxisId).slice("axis-".length));
    const name = ids[n], brush = { ...state.brush }, given = event.intervals || [];
    delete brush[name];
    if (given.length && n < axes.length && axes[n].kind === "category") {
      const value = axes[n].values[Math.round((given.at(-1)[0] + given.at(-1)[1]) / 2)];
      if (value !== undefined) brush[name] = value;
    } else if (given.length) {
      brush[name] = given.map((bounds) => bounds.map((one) => Number(one.toPrecision(6))).sort((a, b) => a - b));
    }
    setTimeout(() => change({ brush }));
  });
  axisInputs(figure);
}

function axisInputs(figure) {
  const table = $("table[data-table=axes]", figure);
  table.tHead.rows[0].append(make("th", { scope: "col", class: "moving" }, "Show from"), make("th", { scope: "col", class: "moving" }, "to"));
  for (const one of data.trials.axes) {
    const line = $$("tbody tr", table).find((row) => row.dataset.axis === one.name);
    const put = (value) => {
      const brush = { ...state.brush };
      if (value === null) delete brush[one.name]; else brush[one.name] = value;
      change({ brush });
    };
    if (one.kind === "category") {
      const chosen = make("select", { "aria-label": `show ${one.name}`, onchange: () => put(chosen.value || null) },
        make("option", { value: "" }, "all"), ...one.values.map((value) => make("option", { value }, value)));
      line.append(make("td", { colspan: 2, class: "moving" }, chosen));
      watch(["brush"], () => { chosen.value = state.brush[one.name] ?? ""; });
      chosen.value = state.brush[one.name] ?? "";
      continue;
    }
    const field = (which) => make("input", { type: "number", step: "any", placeholder: short(one[which]),
      "aria-label": `show ${one.name} ${which === "low" ? "from" : "to"}`, onchange: set });
    const low = field("low"), high = field("high");
    function set() {
      if (low.value === "" && high.value === "") put(null);
      else put([[low.value === "" ? one.low : Number(low.value), high.value === "" ? one.high : Number(high.value)]]);
    }
    const sync = () => {
      const bounds = state.brush[one.name];
      low.value = bounds ? bounds[0][0] : "";
      high.value = bounds ? bounds.at(-1)[1] : "";
    };
    line.append(make("td", { class: "moving" }, low), make("td", { class: "moving" }, high));
    watch(["brush"], sync);
    sync();
  }
}

function axisChoice(figure, key, label) {
  const names = data.trials.axes.map((one) => one.name);
  const chosen = make("select", { onchange: () => change({ [key]: chosen.value }) },
    ...names.map((name) => make("option", { value: name }, name)));
  const sync = () => { chosen.value = axisOf(key).name; };
  watch([key], sync);
  $(".tools", figure).append(make("label", {}, label, chosen));
  sync();
}

function axisOf(key) {
  const { axes } = data.trials;
  const importance = new Map(data.search.importance.rows.map((row) => [row.name, row.importance]));
  const strength = (one) => 2 * (importance.get(one.name) ?? 0) + Math.abs(one.rank_correlation ?? 0) / 1e3;
  const order = [...axes].sort((a, b) => strength(b) - strength(a));
  const fallback = key === "hy" ? order[1] || order[0] : order[0];
  return axes.find((one) => one.name === state[key]) || fallback;
}

function scatterChart(figure) {
  const { metric } = data.trials;
  axisChoice(figure, "sx", "Hyperparameter");
  chart(figure, ["sx", "q", "states", "brush", "pick"], () => {
    const one = axisOf("sx"), among = left();
    const chosen = ranked().filter((row) => among.has(row.trial)).reverse();
    const dot = (row) => ({ value: [place(row, one), row.best, row.rank], name: String(row.trial),
      symbolSize: row.rank === 1 || state.pick.includes(row.trial) ? 14 : 7,
      itemStyle: state.pick.includes(row.trial) ? { borderColor: colour("ink"), borderWidth: 2 } : {} });
    const dots = chosen.map(dot).filter((item) => item.value[0] !== "-");
    const cells = chosen.slice(-100).reverse().map((row) => make("tr", {}, make("td", {}, String(row.trial)),
      make("td", {}, one.kind === "category" ? category(row, one) : short(row.hyperparameters[one.name])), make("td", {}, short(row.best))));
    $("table.drawn tbody", figure).replaceChildren(...cells);
    $("table.drawn thead", figure).rows[0].cells[1].textContent = one.name;
    return {
      grid: { left: 8, right: 20, top: 24, bottom: 40, containLabel: true },
      xAxis: one.kind === "category" ? axis("category", one.name, { data: one.values })
        : axis(one.kind === "log" ? "log" : "value", one.name),
      yAxis: axis(spread(chosen.map((row) => row.best)) ? "log" : "value", metric, { nameLocation: "end", nameGap: 8, nameTextStyle: { color: colour("faint"), align: "left" } }),
      visualMap: { show: false, dimension: 2, min: 1, max: Math.max(2, ranked().length), inRange: { color: shade() } },
      tooltip: { ...base().tooltip, formatter: (at) => `trial ${at.name}, rank ${at.value[2]}\n${one.name}: ${
        one.kind === "category" ? one.values[at.value[0]] : short(at.value[0])}\n${metric}: ${short(at.value[1])}` },
      series: [{ type: "scatter", data: dots, itemStyle: { opacity: 0.85, borderColor: colour("faint"), borderWidth: 0.5 } }],
    };
  }).on("click", (at) => toggle(Number(at.name)));
}

function bins(one, chosen) {
  if (one.kind === "category") {
    return [one.values, (row) => one.values.indexOf(category(row, one))];
  }
  const whole = new Set(chosen.map((row) => row.hyperparameters[one.name]).filter((value) => typeof value === "number"));
  if (whole.size <= 10) {
    const order = [...whole].sort((a, b) => a - b);
    return [order.map(short), (row) => order.indexOf(row.hyperparameters[one.name])];
  }
  const to = one.kind === "log" ? Math.log : (value) => value;
  const from = one.kind === "log" ? Math.exp : (value) => value;
  const low = to(one.low), width = (to(one.high) - low) / 8 || 1;
  const names = Array.from({ length: 8 }, (_, n) => `${short(Number(from(low + n * width).toPrecision(2)))}–${
    short(Number(from(low + (n + 1) * width).toPrecision(2)))}`);
  const at = (row) => {
    const value = row.hyperparameters[one.name];
    return typeof value === "number" ? Math.min(7, Math.floor((to(value) - low) / width)) : -1;
  };
  return [names, at];
}

function heatChart(figure) {
  const { metric, smaller_is_better: smaller, axes } = data.trials;
  if (axes.length < 2) { figure.hidden = true; return; }
  axisChoice(figure, "hx", "Across");
  axisChoice(figure, "hy", "Up");
  chart(figure, ["hx", "hy", "q", "states", "brush"], () => {
    const among = left(), one = axisOf("hx"), other = axisOf("hy");
    const chosen = ranked().filter((row) => among.has(row.trial));
    const [xs, atX] = bins(one, chosen), [ys, atY] = bins(other, chosen);
    const best = new Map();
    for (const row of chosen) {
      const x = atX(row), y = atY(row), key = `${x} ${y}`;
      if (x < 0 || y < 0) continue;
      const old = best.get(key);
      const better = old === undefined || (smaller ? row.best < old[2] : row.best > old[2]);
      best.set(key, [x, y, better ? row.best : old[2], (old ? old[3] : 0) + 1]);
    }
    const cells = [...best.values()];
    const line = (tag, words) => make("tr", {}, ...words.map((word) => make(tag, tag === "th" ? { scope: "col" } : {}, String(word))));
    $("table.cells thead", figure).replaceChildren(line("th", [one.name, other.name, metric, "trials"]));
    $("table.cells tbody", figure).replaceChildren(...cells.map(([x, y, value, n]) => line("td", [xs[x], ys[y], short(value), n])));
    const order = [...new Set(cells.map((cell) => cell[2]))].sort((a, b) => (smaller ? a - b : b - a));
    return {
      grid: { left: 8, right: 16, top: 24, bottom: 40, containLabel: true },
      xAxis: axis("category", one.name, { data: xs }),
      yAxis: axis("category", other.name, { data: ys, nameLocation: "end", nameGap: 8, nameTextStyle: { color: colour("faint"), align: "left" } }),
      visualMap: { show: false, dimension: 4, min: 0, max: Math.max(1, order.length - 1), inRange: { color: shade() } },
      tooltip: { ...base().tooltip, formatter: (at) => `${one.name}: ${xs[at.value[0]]}\n${other.name}: ${ys[at.value[1]]}\nbest ${metric}: ${short(at.value[2])}, of ${at.value[3]}` },
      series: [{ type: "heatmap", data: cells.map((cell) => ({ value: [...cell, order.indexOf(cell[2])],
        label: inkOn(1 - order.indexOf(cell[2]) / Math.max(1, order.length - 1)) })),
        label: { show: $(".plot", figure).clientWidth > 60 * xs.length, fontSize: 11, formatter: (at) => short(Number(at.value[2].toPrecision(3))) } }],
    };
  });
}

function importanceChart(figure) {
  const found = [...data.search.importance.rows].reverse();
  $(".plot", figure).style.height = `${found.length * 26 + 50}px`;
  chart(figure, [], () => ({
    grid: { left: 8, right: 56, top: 8, bottom: 36, containLabel: true },
    xAxis: axis("value", "importance, %", { min: 0 }),
    yAxis: axis("category", "", { data: found.map((row) => row.name), axisLabel: { color: colour("ink"), width: 140, overflow: "truncate" } }),
    series: [{ type: "bar", data: found.map((row) => 100 * row.importance), itemStyle: { color: colour("faint") }, barMaxWidth: 14,
      label: { show: true, position: "right", color: colour("ink"), formatter: (at) => `${short(Number(at.value.toPrecision(3)))} %` } }],
  }));
}
