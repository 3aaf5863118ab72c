// The map of densities or error bars of KV heads for a token, and the curve over all tokens.

const find = (id) => document.getElementById(id);
const largest = (values) => values.reduce((most, value) => Math.max(most, value ?? 0), 0);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

const DRAW_MILLISECONDS = 100;
/** Largest number of KV heads whose cells have room for a number. */
const NUMBERED_HEADS = 8;

/** Reports of the answer's steps, with the mean density and the largest bar of each. */
const reports = [];
/** Cells of the table, by layer and KV head. */
let cells = [];
let redrawing = false;
/** Returns the description of the cell under the pointer. */
let describeCell = () => "";

/** Number format, upper end of the colour scale and curve height of both kinds of maps. */
const KINDS = {
  density: { format: formatPercent, end: () => 1, height: ({ read }) => read },
  bar: {
    format: (bar) => bar.toPrecision(2),
    end: () => roundUp(largest(reports.map(({ largestBar }) => largestBar))),
    height: ({ largestBar }) => largestBar,
  },
};

/** Formats a share, rounded down, so that only a share of 1 is shown as 100 %. */
export function formatPercent(share) {
  const digits = share >= 0.1 && share < 0.9 ? 0 : 1;
  const scale = 10 ** digits;
  return share === 1 ? "100 %" : `${(Math.floor(100 * share * scale) / scale).toFixed(digits)} %`;
}

export function clearReports() {
  reports.length = 0;
}

/** Adds the report of a step, and shows it unless the user has selected an earlier step. */
export function addReport({ density, bar, held }) {
  const slider = find("steps");
  const live = reports.length === 0 || slider.value === slider.max;
  reports.push({ density, bar, held, read: mean(density.flat()), largestBar: largest(bar.flat()) });
  slider.disabled = false;
  slider.max = reports.length - 1;
  if (live) slider.value = slider.max;
  redraw();
}

/** Returns the mean share read and the mean share of kept promises; null if there is none. */
export function summarize() {
  const average = (field) => {
    const values = reports.map((report) => report[field]).filter((value) => value !== null);
    return values.length === 0 ? null : mean(values);
  };
  return { read: average("read"), held: average("held") };
}

/** Schedules one redraw for all reports until then: a large map takes longer than a step. */
export function redraw() {
  if (redrawing) return;
  redrawing = true;
  setTimeout(() => {
    redrawing = false;
    if (reports.length > 0) drawMap(Math.min(find("steps").value, reports.length - 1));
  }, DRAW_MILLISECONDS);
}

function drawMap(step) {
  const name = document.querySelector("input[name=shown]:checked").value;
  const values = reports[step][name];
  const kind = KINDS[name];
  const end = kind.end();
  if (cells.length !== values.length || cells[0].length !== values[0].length) {
    buildTable(values.length, values[0].length);
  }
  values.forEach((row, layer) => row.forEach((value, head) => {
    drawCell(cells[layer][head], value === null ? null : Math.sqrt(value / end));
    if (row.length <= NUMBERED_HEADS) setText(cells[layer][head], formatValue(kind, value));
  }));
  describeCell = (layer, head) => (
    `layer ${layer}, head ${head}: ${formatValue(kind, values[layer][head])}`
  );
  find("high").textContent = kind.format(end);
  find("step").textContent = `Token ${step + 1} of ${reports.length}`;
  drawCurve(reports.map((report) => Math.sqrt(kind.height(report) / end)));
}

function formatValue(kind, value) {
  return value === null ? "none" : kind.format(value);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function buildTable(layers, heads) {
  const map = find("map");
  map.replaceChildren();
  map.classList.toggle("tall", layers > 16);
  const top = map.createTHead().insertRow();
  appendTitle(top, "col", "layer");
  for (let head = 0; head < heads; head += 1) {
    appendTitle(top, "col", heads > NUMBERED_HEADS ? head : `head ${head}`);
  }
  const body = map.createTBody();
  cells = Array.from({ length: layers }, (_, layer) => {
    const row = body.insertRow();
    appendTitle(row, "row", layer);
    return Array.from({ length: heads }, () => row.insertCell());
  });
}

function appendTitle(row, scope, text) {
  const title = document.createElement("th");
  title.scope = scope;
  title.textContent = text;
  row.append(title);
}

/** Colours a cell by a number from 0 to 1; null leaves it without a colour. */
function drawCell(cell, heat) {
  const warmth = heat > 0.68 ? "hot" : heat > 0.45 ? "warm" : "cold";
  cell.className = heat === null ? "none" : warmth;
  cell.style.setProperty("--heat", Math.min(heat ?? 0, 1).toFixed(3));
}

/** Returns the smallest of 0.1, 0.2, 0.5, 1, 2, 5, ... that is not below the value. */
function roundUp(value) {
  for (let scale = 0.1; ; scale *= 10) {
    const end = [1, 2, 5].map((digit) => digit * scale).find((end) => end >= value);
    if (end !== undefined) return Number(end.toPrecision(1));
  }
}

/** Draws a curve of heights from 0 to 1, one per step, into a box of 100 by 24 units. */
function drawCurve(heights) {
  const width = 100 / Math.max(1, heights.length - 1);
  const points = heights.map((height, i) => `${i * width},${23 - 22 * height}`);
  find("curve").firstElementChild.setAttribute("points", points.join(" "));
}

find("map").addEventListener("pointerover", ({ target }) => {
  const [layer, head] = [target.parentElement?.rowIndex - 1, target.cellIndex - 1];
  if (target.tagName === "TD") target.title = describeCell(layer, head);
});
