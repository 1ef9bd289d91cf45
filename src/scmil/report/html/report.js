"use strict";
const valueOf = (row, column, metric) => {
  const cell = row.cells[column];
  const shown = cell.querySelector(".m-" + metric) || cell;
  const text = shown.dataset.sort;
  if (text === undefined) return cell.textContent.trim();
  return text === "" ? null : Number(text);
};
const compare = (a, b) => {
  if (typeof a === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
};
const sortTable = (table, header) => {
  const body = table.tBodies[0];
  const metric = table.closest("[data-metric]")?.dataset.metric;
  const rows = [...body.rows].map((row) => [valueOf(row, header.cellIndex, metric), row]);
  const known = rows.filter(([value]) => value !== null);
  const numeric = known.some(([value]) => typeof value === "number");
  const before = header.getAttribute("aria-sort");
  const descending = before ? before === "ascending" : numeric;
  const direction = descending ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  known.sort(([a], [b]) => sign * compare(a, b));
  const missing = rows.filter(([value]) => value === null);
  body.append(...[...known, ...missing].map(([, row]) => row));
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
};
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sortTable(button.closest("table"), button.closest("th")));
for (const pick of document.querySelectorAll(".pick")) {
  pick.hidden = false;
  const area = pick.closest("[data-metric]");
  pick.querySelector("select").addEventListener("change", (event) => {
    area.dataset.metric = event.target.value;
    for (const header of area.querySelectorAll("th[aria-sort]")) {
      header.removeAttribute("aria-sort");
    }
  });
}
for (const image of document.querySelectorAll(".panels img")) {
  image.setAttribute("role", "button");
  image.tabIndex = 0;
  image.title = "Click to enlarge or reduce";
  const toggle = () => image.closest("figure").classList.toggle("enlarged");
  image.addEventListener("click", toggle);
  image.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
}
