// The table of trials: sorting, filters, columns, and the selection of rows.

function valueOf(row, key) {
  if (key.startsWith("h:")) {
    const value = row.hyperparameters[key.slice(2)];
    return typeof value === "object" && value !== null ? JSON.stringify(value) : value;
  }
  return key.startsWith("o:") ? row.objectives[key.slice(2)] : row[key];
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function trialTable() {
  const table = $("table[data-table=trials]");
  if (table === null) return;
  const body = $("tbody", table);
  const lines = new Map($$("tr", body).map((line) => [Number(line.dataset.trial), line]));
  const headers = $$("thead th", table);
  const keys = headers.map((header) => header.dataset.key);
  headers.forEach((header) => {
    const key = header.dataset.key;
    const button = make("button", { type: "button", onclick: () => sortBy(key) }, header.textContent);
    header.replaceChildren(button);
  });
  const places = new Map(data.trials.axes.map((one) => [one.name, keys.indexOf(`h:${one.name}`)]));
  for (const [trial, line] of lines) {
    for (const one of data.trials.axes) {
      if (one.kind === "category") cellText.set(`${trial} ${one.name}`, line.cells[places.get(one.name)].textContent);
    }
    const cell = line.cells[1];
    const button = make("button", { type: "button", "aria-pressed": "false" }, cell.textContent);
    cell.replaceChildren(button);
  }
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr[data-trial]");
    if (line === null || (getSelection() && String(getSelection()))) return;
    toggle(Number(line.dataset.trial));
  });
  tools(keys, headers);

  function sortBy(key) {
    const [now, way] = state.sort.split(" ");
    const next = now !== key ? "ascending" : way === "ascending" ? "descending" : "";
    change({ sort: next ? `${key} ${next}` : "" });
  }

  watch(["sort"], order);
  function order() {
    const at = state.sort.lastIndexOf(" ");
    const key = state.sort.slice(0, at), way = state.sort.slice(at + 1);
    headers.forEach((header) => {
      if (at > 0 && header.dataset.key === key) header.setAttribute("aria-sort", way);
      else header.removeAttribute("aria-sort");
    });
    const sorted = [...data.trials.rows];
    if (at > 0 && keys.includes(key)) {
      const sign = way === "descending" ? -1 : 1;
      const missing = (value) => value === null || value === undefined || value === "";
      sorted.sort((one, other) => {
        const a = valueOf(one, key), b = valueOf(other, key);
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        return sign * compare(a, b);
      });
    }
    body.append(...sorted.map((row) => lines.get(row.trial)));
  }

  watch(["q", "states", "brush"], show);
  function show() {
    const shown = left();
    for (const [trial, line] of lines) line.hidden = !shown.has(trial);
    $("#shown").textContent = `${short(shown.size)} of ${short(rows.size)} trials`;
  }

  watch(["hide"], columns);
  function columns() {
    const hidden = keys.map((key) => state.hide.includes(key));
    for (const line of [table.tHead.rows[0], ...lines.values()]) {
      hidden.forEach((hide, place) => line.cells[place].classList.toggle("hide", hide));
    }
  }

  watch(["pick"], pick);
  function pick() {
    const picked = new Set(state.pick);
    for (const [trial, line] of lines) {
      line.classList.toggle("picked", picked.has(trial));
      line.cells[1].firstChild.setAttribute("aria-pressed", String(picked.has(trial)));
    }
  }
  // thousands of rows are as they should be where nothing is chosen
  if (state.sort) order();
  if (narrowed()) show();
  else $("#shown").textContent = `${short(rows.size)} of ${short(rows.size)} trials`;
  if (state.hide.length) columns();
  if (state.pick.length) pick();
  table.dataset.ready = "";
}

function toggle(trial) {
  const picked = state.pick.includes(trial);
  change({ pick: picked ? state.pick.filter((one) => one !== trial) : [...state.pick, trial] });
}

function tools(keys, headers) {
  const names = [...new Set(data.trials.rows.map((row) => row.state))].sort();
  const text = make("input", { type: "search", id: "filter", value: state.q, oninput: () => change({ q: text.value }) });
  const chosen = make("select", { id: "filter-state", onchange: () => change({ states: chosen.value }) },
    make("option", { value: "" }, "any"), ...names.map((name) => make("option", { value: name }, name)));
  const boxes = keys.map((key, place) => {
    const box = make("input", { type: "checkbox", checked: !state.hide.includes(key), onchange: () => {
      change({ hide: box.checked ? state.hide.filter((one) => one !== key) : [...state.hide, key] });
    } });
    return [key, box, make("label", { class: "flag" }, box, headers[place].textContent)];
  });
  const clear = make("button", { type: "button", onclick: () => {
    change({ q: "", states: "", brush: {}, pick: [], hide: [], sort: "" });
  } }, "Show all");
  const sync = () => {
    if (text.value !== state.q) text.value = state.q;
    chosen.value = state.states;
    for (const [key, box] of boxes) box.checked = !state.hide.includes(key);
  };
  watch(["q", "states", "hide"], sync);
  $("#trial-tools").classList.add("tools");
  $("#trial-tools").append(
    make("label", {}, "Filter by text", text), make("label", {}, "State", chosen), clear,
    make("span", { id: "shown" }),
    make("details", {}, make("summary", {}, "Columns"), make("div", { class: "columns" }, ...boxes.map((one) => one[2]))),
  );
  sync();
}
