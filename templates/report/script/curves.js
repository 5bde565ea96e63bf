// Learning curves, matrices and the timeline.

const X_NAMES = { step: "steps (batches)", epoch: "epochs", wall: "seconds since the trial began", slot_hours: "slot-hours" };
const DASHES = ["solid", [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 3], [1, 3], [9, 2, 2, 2]];

const styleOf = (trial) => Math.min(8, data.curves.trials.indexOf(trial));

function smoothed(values, weight) {
  let mean = null, scale = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? (1 - weight) * value : weight * mean + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return mean / scale;
  });
}

// Curves over several decades have a logarithmic axis where nothing else was chosen.
function steep(one) {
  const values = (one?.lines ?? []).flatMap((line) => line.points.value).filter((value) => value !== null);
  return values.length > 0 && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 100;
}

function curveTools() {
  const place = $("#curve-tools");
  if (!data.curves.charts.length) return;
  place.classList.add("tools");
  const known = new Set(data.curves.charts.flatMap((one) => one.lines).flatMap((one) => one.points.epoch));
  const across = make("select", { id: "curve-x", onchange: () => change({ x: across.value }) },
    ...Object.entries(X_NAMES).filter(([key]) => key !== "epoch" || [...known].some((one) => one !== null))
      .map(([key, name]) => make("option", { value: key }, name)));
  const log = make("input", { type: "checkbox", id: "curve-log", onchange: () => change({ log: log.checked }) });
  const smooth = make("input", { type: "range", id: "curve-smooth", min: 0, max: 0.95, step: 0.05,
    oninput: () => change({ smooth: Number(smooth.value) }) });
  const sync = () => { across.value = state.x; log.checked = state.log ?? steep(data.curves.charts[0]); smooth.value = state.smooth; };
  watch(["x", "log", "smooth"], sync);
  place.append(make("label", {}, "Horizontal axis", across), make("label", {}, "Smoothing", smooth),
    make("label", { class: "flag" }, log, "Logarithmic values"));
  sync();
}

function pairs(points, values = points.value) {
  return points[state.x].map((x, n) => [x, values[n] === null ? "-" : values[n]]);
}

function curveSeries(line, shown) {
  const style = styleOf(line.trial);
  const ink = colour(`s${style}`), name = `trial ${line.trial}`;
  const weak = state.pick.length > 0 && !state.pick.includes(line.trial);
  const width = state.pick.includes(line.trial) ? 3 : style === 8 ? 1 : 1.75;
  const look = (opacity) => ({ color: ink, width, type: DASHES[style] || "solid", opacity: weak ? opacity * 0.25 : opacity });
  const common = { type: "line", name, showSymbol: false, itemStyle: { color: ink }, silent: false, connectNulls: false };
  const found = [];
  if (!shown) return found;
  const alone = line.points.value.filter((value) => value !== null).length === 1;
  found.push({ ...common, showSymbol: alone, data: pairs(line.points), lineStyle: look(state.smooth ? 0.3 : 1) });
  if (state.smooth) {
    found.push({ ...common, data: pairs(line.points, smoothed(line.points.value, state.smooth)), lineStyle: look(1) });
  }
  if (line.superseded.step.length) {
    found.push({ ...common, name: `${name}, superseded`, data: pairs(line.superseded), lineStyle: look(0.35), symbolSize: 4,
      showSymbol: line.superseded.step.length < 3, itemStyle: { color: ink, opacity: 0.35 } });
  }
  const rings = line.points.attempt.map((attempt, n) => [attempt, n])
    .filter(([attempt, n]) => n > 0 && attempt !== line.points.attempt[n - 1] && line.points.value[n] !== null)
    .map(([, n]) => [line.points[state.x][n], line.points.value[n]]);
  if (rings.length) {
    found.push({ type: "scatter", name: `${name}, another attempt goes on`, data: rings, symbol: "circle", symbolSize: 8,
      itemStyle: { color: colour("paper"), borderColor: ink, borderWidth: 1.5, opacity: weak ? 0.25 : 1 } });
  }
  return found;
}

function curveChart(figure) {
  const own = data.curves.charts.find((one) => one.group === figure.dataset.group && one.name === figure.dataset.name);
  chart(figure, ["x", "log", "smooth", "q", "states", "brush", "pick"], () => {
    const among = narrowed() ? left() : null;
    const lines = [...own.lines].reverse();
    const series = lines.flatMap((line) => curveSeries(line, among === null || among.has(line.trial)));
    const values = own.lines.flatMap((line) => line.points.value).filter((value) => value !== null);
    const log = (state.log ?? steep(own)) && values.every((value) => value > 0);
    const named = own.lines.slice(0, 8).map((line) => ({ name: `trial ${line.trial}` }));
    const room = 60 + 7 * Math.max(...named.map((one) => one.name.length));
    const high = Math.ceil(named.length / Math.max(1, Math.floor($(".plot", figure).clientWidth / room)));
    return {
      grid: { left: 8, right: 16, top: named.length > 1 ? 24 + 20 * high : 16, bottom: 40, containLabel: true },
      xAxis: axis("value", X_NAMES[state.x], { max: "dataMax" }),
      yAxis: axis(log ? "log" : "value", "", { nameGap: 40 }),
      legend: { show: named.length > 1, top: 0, data: named, itemWidth: 32, itemStyle: { opacity: 0 }, textStyle: { color: colour("ink") },
        selectedMode: false },
      dataZoom: [{ type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: "ctrl", filterMode: "none" }],
      tooltip: { ...base().tooltip, trigger: "item",
        formatter: (at) => `${at.seriesName}\n${X_NAMES[state.x]}: ${short(at.value[0])}\n${own.name}: ${short(at.value[1])}` },
      series,
    };
  }).on("click", (at) => {
    const trial = Number(/^trial (\d+)/.exec(at.seriesName)?.[1]);
    if (rows.has(trial)) toggle(trial);
  });
}

function matrixChart(figure) {
  const own = data.curves.structured[Number(figure.dataset.index)];
  let at = own.frames.length - 1;
  const table = $("table.matrix", figure);
  const all = own.frames.flatMap((frame) => frame.value.flat());
  const low = Math.min(...all), high = Math.max(...all);
  const [height, width] = [own.frames[at].value.length, own.frames[at].value[0].length], few = height * width <= 144;
  Object.assign($(".plot", figure).style, { height: `${Math.min(352, 70 * height + 70)}px`, maxWidth: `${110 * width + 130}px` });
  const drawn = chart(figure, [], () => {
    const value = own.frames[at].value;
    const cells = value.flatMap((row, y) => row.map((cell, x) => (
      { value: [x, y, cell], label: few ? inkOn((cell - low) / (high - low || 1), "ink") : {} })));
    return {
      grid: { left: 8, right: 70, top: 24, bottom: 36, containLabel: true },
      xAxis: axis("category", "column", { data: value[0].map((_, n) => String(n)) }),
      yAxis: axis("category", "row", { data: value.map((_, n) => String(n)), inverse: true, nameLocation: "start", nameGap: 8, nameTextStyle: { color: colour("faint"), align: "right" } }),
      visualMap: { min: low, max: high, right: 0, top: "middle", precision: 3, itemHeight: 80, text: [short(high), short(low)],
        inRange: { color: [colour("low"), colour("ink")] }, textStyle: { color: colour("ink") } },
      series: [{ type: "heatmap", data: cells, label: { show: few,
        formatter: (one) => short(one.value[2]) } }],
    };
  });
  if (own.frames.length < 2) return;
  const slider = make("input", { type: "range", min: 0, max: own.frames.length - 1, value: at, oninput: () => {
    at = Number(slider.value);
    const { step, value } = own.frames[at];
    $(".at", figure).textContent = short(step);
    slider.setAttribute("aria-valuetext", `step ${step}`);
    value.forEach((row, y) => row.forEach((cell, x) => { table.tBodies[0].rows[y].cells[x + 1].textContent = short(cell); }));
    charts.find((one) => one.drawn === drawn).draw();
  } });
  figure.prepend(make("div", { class: "tools" }, make("label", {}, "Step", slider)));
}

function timelineChart(figure) {
  const { lanes, length_s: length } = data.timeline;
  const names = lanes.map((lane) => String(lane.trial));
  const most = 30;
  $(".plot", figure).style.height = `${Math.min(lanes.length, most) * 18 + 90}px`;
  const bars = lanes.flatMap((lane, y) => lane.spans.map((span) => [y, span.start, span.end, span.kind, span.attempt]));
  const ticks = lanes.flatMap((lane, y) => lane.checkpoints.map((at) => [at, y]));
  const ends = lanes.flatMap((lane, y) => lane.ends.map((end) => ({ value: [end.at, y, end.attempt, end.reason] })));
  const unitOf = (seconds) => (seconds > 172800 ? [86400, "days"] : seconds > 7200 ? [3600, "hours"] : seconds > 300 ? [60, "minutes"] : [1, "seconds"]);
  const clock = (seconds, unit = unitOf(seconds)) => `${short(seconds / unit[0])} ${unit[1]}`;
  // the hours of the lanes that are seen
  const hours = (first, last) => {
    const seen = lanes.slice(first, last + 1).flatMap((lane) => lane.spans);
    const begin = Math.min(length, ...seen.map((one) => one.start)), end = Math.max(0, ...seen.map((one) => one.end));
    const unit = unitOf(end - begin);
    const step = unit[0] * ([1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 480, 1000, 2500, 5000, 10000].find((one) => (end - begin) / unit[0] / one <= 7) || 1e5);
    return axis("value", `${unit[1]} since the first trial was made`, { min: Math.floor(begin / step) * step, max: end, interval: step,
      axisLabel: { color: colour("faint"), hideOverlap: true, showMaxLabel: end % step === 0, formatter: (at) => short(at / unit[0]) } });
  };
  let seen = [0, Math.min(lanes.length, most) - 1];
  const rectangle = (_, api) => {
    const [y, start, end] = [api.value(0), api.value(1), api.value(2)];
    const kind = bars[_.dataIndex][3];
    const from = api.coord([start, y]), to = api.coord([end, y]);
    const high = (kind === "waiting" || kind === "paused" ? 0.3 : 0.72) * api.size([0, 1])[1];
    return { type: "rect", shape: { x: from[0], y: from[1] - high / 2, width: Math.max(to[0] - from[0], 0.5), height: high },
      style: { fill: colour(kind) } };
  };
  const drawn = chart(figure, ["pick"], () => ({
    grid: { left: 8, right: lanes.length > most ? 44 : 16, top: 8, bottom: 40, containLabel: true },
    xAxis: hours(...seen),
    yAxis: axis("category", "", { data: names, inverse: true, splitLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: (name) => colour(state.pick.includes(Number(name)) ? "ink" : "faint") } }),
    dataZoom: lanes.length > most
      ? [{ type: "slider", yAxisIndex: 0, startValue: seen[0], endValue: seen[1], width: 14, right: 8, showDetail: false,
        brushSelect: false, borderColor: colour("line"), fillerColor: colour("line"), handleStyle: { color: colour("faint") } }]
      : [],
    tooltip: { ...base().tooltip, formatter: (at) => {
      if (at.seriesName === "end") return `trial ${names[at.value[1]]}, attempt ${at.value[2]} ended: ${at.value[3].replaceAll("_", " ")}`;
      if (at.seriesName === "checkpoint") return `trial ${names[at.value[1]]}: checkpoint after ${clock(at.value[0])}`;
      const [y, start, end, kind, attempt] = bars[at.dataIndex];
      return `trial ${names[y]}, attempt ${attempt}\n${data.kinds[kind].toLowerCase()}, ${clock(end - start)}`;
    } },
    series: [
      { type: "custom", name: "span", renderItem: rectangle, data: bars.map((bar) => bar.slice(0, 3)), encode: { x: [1, 2], y: 0 }, clip: true },
      { type: "scatter", name: "checkpoint", data: ticks, symbol: "rect", symbolSize: [1.5, 10], itemStyle: { color: colour("paper") } },
      { type: "scatter", name: "end", data: ends, symbolSize: 1, label: { show: true, position: "right", distance: 1, fontSize: 12, color: colour("ink"),
        textBorderColor: colour("paper"), textBorderWidth: 3, formatter: (at) => data.signs[at.value[3]] || data.wrong } },
    ],
  }));
  drawn.on("datazoom", () => {
    const { startValue, endValue } = drawn.getOption().dataZoom[0];
    seen = [startValue, endValue];
    drawn.setOption({ xAxis: hours(...seen) });
  });
}
